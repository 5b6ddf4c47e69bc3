"""Traces of a forward pass: the functions called, the parameters they read and their degree of homogeneity.

Traces use a ``TorchFunctionMode``, so they see plain functions as well as modules. A *feature* is a differentiable
floating-point tensor that is not a parameter; its *producers* are the weights that were applied to it last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

PRODUCT_FUNCTIONS = {
    "mul",
    "__mul__",
    "__rmul__",
    "matmul",
    "__matmul__",
    "mm",
    "bmm",
    "einsum",
    "dot",
    "inner",
    "pow",
    "square",
}
COEFFICIENT_FUNCTIONS = {"exp", "softmax", "sigmoid"}  # their results are coefficients, not features
CONCATENATIONS = {"cat", "concat", "concatenate", "hstack"}
SPLITS = {"split", "chunk", "tensor_split", "split_with_sizes", "unsafe_chunk", "unsafe_split"}
SCALES = (2.0, 1e4, 1e-4)  # factors at which homogeneity is tested; clipped functions and an ε pass at 2 alone
MAX_EPSILON = 1e-2  # a smaller constant among the arguments of a function is an ε


@dataclass(frozen=True)
class FunctionCall:
    """One call of a torch function or a submodule.

    Attributes:
        function: Name of the function, or class name of the submodule.
        reads: Parameters among the arguments, each with its position.
        degree: Degree k of homogeneity, f(λx) = λ^k f(x); None if there is none, or it was not tested.
        epsilon: Constant up to which alone the function is homogeneous (the ε of a normalisation); 0 if there is none.
        preserves_shape: Whether the call maps one feature tensor to another of the same shape.
        squared_weights: Weights whose features the call multiplies with themselves.
        producers: Weights whose features the call reads.
        activation: Class name of the activation module of PyTorch that makes the call, if any.
    """

    function: str
    reads: tuple[tuple[str, int], ...] = ()
    degree: float | None = None
    epsilon: float = 0.0
    preserves_shape: bool = False
    squared_weights: frozenset[str] = frozenset()
    producers: frozenset[str] = frozenset()
    activation: str = ""

    @property
    def breaks_laws(self) -> bool:
        """Whether no law passes through: not homogeneous of a positive degree, or only up to ε.

        A call that reads parameters is excepted unless its degree is 0, since they may absorb the rescaling.
        """
        inexact = self.degree == 0 or (not self.reads and (self.degree is None or self.epsilon > 0))
        return self.preserves_shape and inexact


class Trace(TorchFunctionMode):
    """Records the torch functions called while it is active.

    Args:
        parameters: Parameters to recognise among the arguments, by name.
        test_homogeneity: Whether to repeat every call with doubled features, to determine its degree of homogeneity.
        pause: Context for repeated calls, in which other hooks do nothing.

    Attributes:
        calls: Function calls, in order.
        blocks: Blocks of concatenations and slices: length of the axis, start, size.
        modules: Calls of shape-preserving submodules; see :meth:`forward_hook`.
        output_weights: Producers of the network's output.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        test_homogeneity: bool = False,
        pause: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__()
        self._pause = pause
        self.calls: list[FunctionCall] = []
        self.blocks: set[tuple[int, int, int]] = set()
        self.modules: list[FunctionCall] = []
        self.test_homogeneity = test_homogeneity
        self.output_weights: frozenset[str] = frozenset()
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._weights = {name for name, p in parameters.items() if sum(size > 1 for size in p.shape) > 1}
        self._producers: dict[int, frozenset[str]] = {}  # by id of the feature tensor
        self._rng_states: dict[int, Tensor] = {}  # by id of the module
        self._activation = ""
        self._repeating = False  # True while a call is repeated with doubled features
        self._references: list[Tensor] = []  # keeps tensors alive, so that their ids stay unique

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._repeating:
            return func(*args, **kwargs)
        call = FunctionCall(getattr(func, "__name__", str(func)), tuple(self._reads(args, kwargs)))
        scaled = self._call_at_scales(func, args, kwargs) if self.test_homogeneity else []
        features = self._features((args, kwargs))
        producers = [self.producers(feature) for feature in features]
        shape = features[0].shape if features else None
        result = func(*args, **kwargs)
        if not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(result)):
            return result  # shapes, dtypes, indices
        self.blocks |= _blocks(call.function, args, kwargs, result)
        if self.test_homogeneity and isinstance(result, Tensor):
            degree, exact = homogeneity_degree(scaled, result)
            call = replace(
                call,
                degree=degree,
                epsilon=0.0 if exact else _epsilon((args, kwargs)),
                preserves_shape=bool(scaled) and len(features) == 1 and result.shape == shape,
                squared_weights=_squared_weights(call.function, producers),
                producers=frozenset().union(*producers),
                activation=self._activation,
            )
            weights = frozenset(name for name, _ in call.reads if name in self._weights)
            inherited = frozenset() if call.function in COEFFICIENT_FUNCTIONS else frozenset().union(*producers)
            self._producers[id(result)] = weights or inherited
            self._references.append(result)
        self.calls.append(call)
        return result

    def forward_pre_hook(self, module: nn.Module, _: tuple[Any, ...]) -> None:
        """Save the random state, so that :meth:`forward_hook` can repeat the call with the same random numbers."""
        is_activation = type(module).__module__ == "torch.nn.modules.activation"
        self._activation = type(module).__name__ if is_activation else ""
        self._rng_states[id(module)] = torch.get_rng_state()

    def forward_hook(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        """Record a submodule that maps its first argument to a tensor of the same shape."""
        self._activation = ""
        feature = args[0] if args else None
        if isinstance(feature, Tensor) and isinstance(result, Tensor) and feature.shape == result.shape:
            rng_state = torch.get_rng_state()
            torch.set_rng_state(self._rng_states[id(module)])
            # Once more at scale 1: the result has passed the gates of inner modules, a repeated call does not.
            plain, *scaled = self._call_at_scales(module.forward, args, {}, (1.0, *SCALES)) or [result]
            torch.set_rng_state(rng_state)
            reads = tuple((name, 0) for name in map(self._names.get, map(id, module.parameters())) if name)
            degree, exact = homogeneity_degree(scaled, plain)
            epsilon = 0.0 if exact else _epsilon(vars(module).get("eps"))
            self.modules.append(FunctionCall(type(module).__name__, reads, degree, epsilon, preserves_shape=True))

    def producers(self, tensor: Tensor) -> frozenset[str]:
        """Weights of which ``tensor`` is a feature: applied to it, with no other weight applied since."""
        return self._producers.get(id(tensor), frozenset())

    def use_count(self, name: str) -> int:
        """Number of times that calls read a parameter."""
        return sum(name == read for call in self.calls for read, _ in call.reads)

    def first_reads(self) -> dict[str, int]:
        """Index of the first call that reads each parameter."""
        first: dict[str, int] = {}
        for index, call in enumerate(self.calls):
            for name, _ in call.reads:
                first.setdefault(name, index)
        return first

    def _reads(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[tuple[str, int]]:
        for position, argument in enumerate([*args, *kwargs.values()]):
            for leaf in tree_leaves(argument):
                if id(leaf) in self._names:
                    yield self._names[id(leaf)], position

    def _features(self, arguments: Any) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(arguments) if self._is_feature(leaf)]

    def _is_feature(self, leaf: Any) -> bool:
        return (
            isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_floating_point() and id(leaf) not in self._names
        )

    def _call_at_scales(
        self, func: Callable[..., Any], args: Any, kwargs: Any, scales: Sequence[float] = SCALES
    ) -> list[Tensor]:
        """Repeat a call with its features times each scale, with the same random numbers; [] if impossible."""
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        if not self._features((args, kwargs)) or (in_place and not self._is_feature(args[0])):
            return []  # an in-place scatter into a buffer would write twice
        rng_state = torch.get_rng_state()
        self._repeating = True
        results = []
        try:
            for scale in scales:
                torch.set_rng_state(rng_state)
                with torch.no_grad(), self._pause():
                    scaled = tree_map(
                        lambda leaf, scale=scale: scale * leaf.detach() if self._is_feature(leaf) else leaf,
                        (args, kwargs),
                    )
                    results.append(func(*scaled[0], **scaled[1]))
        except Exception:  # some functions only accept their original arguments; their degree stays unknown
            return []
        finally:
            self._repeating = False
            torch.set_rng_state(rng_state)
        return results if all(isinstance(result, Tensor) for result in results) else []


def homogeneity_degree(scaled: list[Tensor], result: Tensor) -> tuple[float | None, bool]:
    """Determine k in f(λx) = λ^k f(x).

    Args:
        scaled: f(λx) for the λ of ``SCALES``; empty if unknown.
        result: f(x).

    Returns:
        The degree, a multiple of 1/6, or None; and whether it holds at every scale. A normalisation, which adds a small
        constant to its denominator, has degree 0, but not exactly; a clipped function has none.
    """
    if not scaled or scaled[0].shape != result.shape or not result.is_floating_point():
        return None, True
    size, doubled = float(result.detach().abs().max()), float(scaled[0].abs().max())
    if not 0.0 < size < math.inf or not 0.0 < doubled < math.inf:
        return (1.0, True) if size == doubled == 0.0 else (None, True)
    degree = round(6.0 * math.log2(doubled / size)) / 6.0
    agrees = [_agrees(values, scale**degree * result.detach()) for values, scale in zip(scaled, SCALES, strict=True)]
    if agrees[0] <= 1e-9 and max(agrees) <= 1e-6:
        return degree, True
    # Homogeneous for large features: what disturbs it for small ones is an ε.
    return (degree, False) if max(agrees[:2]) <= (1e-2 if degree == 0.0 else 1e-3) else (None, True)


def _agrees(values: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return float((values.to(expected) - expected).abs().max()) / float(expected.abs().max())


def _epsilon(arguments: Any) -> float:
    """The largest small positive constant among the arguments of a function."""
    constants = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, float) and 0.0 < leaf <= MAX_EPSILON]
    return max(constants, default=0.0)


def _blocks(function: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> set[tuple[int, int, int]]:
    """Blocks that a concatenation, a split or a slice makes of an axis: (length, start, size)."""
    if function in CONCATENATIONS:
        parts, whole = args[0] if args else kwargs.get("tensors", ()), result
    elif function in SPLITS:
        parts, whole = result, args[0]
    elif function in ("__getitem__", "narrow") and isinstance(args[0], Tensor) and isinstance(result, Tensor):
        return _slice_block(function, args, result)
    else:
        return set()
    if not isinstance(whole, Tensor) or not all(isinstance(part, Tensor) and part.ndim == whole.ndim for part in parts):
        return set()
    blocks = set()
    for axis, length in enumerate(whole.shape):
        sizes = [part.shape[axis] for part in parts]
        if len(sizes) > 1 and sum(sizes) == length:
            blocks |= {(length, sum(sizes[:k]), size) for k, size in enumerate(sizes)}
    return blocks


def _slice_block(function: str, args: tuple[Any, ...], result: Tensor) -> set[tuple[int, int, int]]:
    """The block that a slice with step 1 selects."""
    whole = args[0]
    if function == "narrow":
        return {(whole.shape[args[1]], int(args[2]), int(args[3]))} if len(args) > 3 else set()
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    slices = [entry for entry in index if isinstance(entry, slice) and entry != slice(None)]
    if len(slices) != 1 or any(isinstance(entry, (Tensor, list)) for entry in index) or result.ndim != whole.ndim:
        return set()
    changed = [axis for axis in range(whole.ndim) if whole.shape[axis] != result.shape[axis]]
    if len(changed) != 1:
        return set()
    length = whole.shape[changed[0]]
    start, stop, step = slices[0].indices(length)
    return {(length, start, stop - start)} if step == 1 else set()


def _squared_weights(function: str, producers: list[frozenset[str]]) -> frozenset[str]:
    """Weights that produced both factors of a product."""
    if function not in PRODUCT_FUNCTIONS or not producers:
        return frozenset()
    if len(producers) == 1:
        return producers[0] if function in ("pow", "square") else frozenset()
    return producers[0] & producers[1]
