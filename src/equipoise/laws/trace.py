"""Traces of a forward pass: the functions called, the parameters they read and their degree of homogeneity.

Traces use a ``TorchFunctionMode``, so they see plain functions as well as modules. A *feature* is a differentiable
floating-point tensor that is not a parameter; its *producers* are the weights that were applied to it last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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


@dataclass(frozen=True)
class FunctionCall:
    """One call of a torch function or a submodule.

    Attributes:
        function: Name of the function, or class name of the submodule.
        reads: Parameters among the arguments, each with its position.
        degree: Degree k of homogeneity, f(2x) = 2^k f(x); None if k is not 0, 1 or 2, or was not tested.
        preserves_shape: Whether the call maps one feature tensor to another of the same shape.
        squared_weights: Weights whose features the call multiplies with themselves.
    """

    function: str
    reads: tuple[tuple[str, int], ...] = ()
    degree: int | None = None
    preserves_shape: bool = False
    squared_weights: frozenset[str] = frozenset()

    @property
    def breaks_laws(self) -> bool:
        """Whether no law passes through: not of degree 1, and no parameter could absorb the rescaling."""
        return self.preserves_shape and (self.degree == 0 if self.reads else self.degree != 1)


class Trace(TorchFunctionMode):
    """Records the torch functions called while it is active.

    Args:
        parameters: Parameters to recognise among the arguments, by name.
        test_homogeneity: Whether to repeat every call with doubled features, to determine its degree of homogeneity.

    Attributes:
        calls: Function calls, in order.
        modules: Calls of shape-preserving submodules; see :meth:`forward_hook`.
        output_weights: Producers of the network's output.
    """

    def __init__(self, parameters: Mapping[str, Tensor], test_homogeneity: bool = False) -> None:
        super().__init__()
        self.calls: list[FunctionCall] = []
        self.modules: list[FunctionCall] = []
        self.test_homogeneity = test_homogeneity
        self.output_weights: frozenset[str] = frozenset()
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._weights = {name for name, p in parameters.items() if sum(size > 1 for size in p.shape) > 1}
        self._producers: dict[int, frozenset[str]] = {}  # by id of the feature tensor
        self._rng_states: dict[int, Tensor] = {}  # by id of the module
        self._repeating = False  # True while a call is repeated with doubled features
        self._references: list[Tensor] = []  # keeps tensors alive, so that their ids stay unique

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._repeating:
            return func(*args, **kwargs)
        call = FunctionCall(getattr(func, "__name__", str(func)), tuple(self._reads(args, kwargs)))
        doubled = self._call_with_doubled_features(func, args, kwargs) if self.test_homogeneity else None
        features = self._features((args, kwargs))
        producers = [self.producers(feature) for feature in features]
        shape = features[0].shape if features else None
        result = func(*args, **kwargs)
        if not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(result)):
            return result  # shapes, dtypes, indices
        if self.test_homogeneity and isinstance(result, Tensor):
            call = replace(
                call,
                degree=homogeneity_degree(doubled, result),
                preserves_shape=doubled is not None and len(features) == 1 and result.shape == shape,
                squared_weights=_squared_weights(call.function, producers),
            )
            weights = frozenset(name for name, _ in call.reads if name in self._weights)
            inherited = frozenset() if call.function in COEFFICIENT_FUNCTIONS else frozenset().union(*producers)
            self._producers[id(result)] = weights or inherited
            self._references.append(result)
        self.calls.append(call)
        return result

    def forward_pre_hook(self, module: nn.Module, _: tuple[Any, ...]) -> None:
        """Save the random state, so that :meth:`forward_hook` can repeat the call with the same random numbers."""
        self._rng_states[id(module)] = torch.get_rng_state()

    def forward_hook(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        """Record a submodule that maps its first argument to a tensor of the same shape."""
        feature = args[0] if args else None
        if isinstance(feature, Tensor) and isinstance(result, Tensor) and feature.shape == result.shape:
            rng_state = torch.get_rng_state()
            torch.set_rng_state(self._rng_states[id(module)])
            doubled = self._call_with_doubled_features(module.forward, args, {})
            torch.set_rng_state(rng_state)
            reads = tuple((name, 0) for name in map(self._names.get, map(id, module.parameters())) if name)
            degree = homogeneity_degree(doubled, result)
            self.modules.append(FunctionCall(type(module).__name__, reads, degree, preserves_shape=True))

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

    def _call_with_doubled_features(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor | None:
        """Repeat a call with doubled features and the same random numbers; None if that is not possible."""
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        if not self._features((args, kwargs)) or (in_place and not self._is_feature(args[0])):
            return None  # an in-place scatter into a buffer would write twice
        rng_state = torch.get_rng_state()
        self._repeating = True
        try:
            with torch.no_grad():
                args, kwargs = tree_map(
                    lambda leaf: 2.0 * leaf.detach() if self._is_feature(leaf) else leaf, (args, kwargs)
                )
                result = func(*args, **kwargs)
        except Exception:  # some functions only accept their original arguments; their degree stays unknown
            return None
        finally:
            self._repeating = False
            torch.set_rng_state(rng_state)
        return result if isinstance(result, Tensor) else None


class AblateFunctions(TorchFunctionMode):
    """Replaces shape-preserving functions by the identity.

    Args:
        functions: Names of the functions to replace.
    """

    def __init__(self, functions: Iterable[str]) -> None:
        super().__init__()
        self.functions = frozenset(functions)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in self.functions and args and isinstance(result, Tensor):
            feature = args[0]
            if isinstance(feature, Tensor) and feature.shape == result.shape:
                return feature.clone()
        return result


def homogeneity_degree(doubled: Tensor | None, result: Tensor) -> int | None:
    """Determine k in f(2x) = 2^k f(x).

    Args:
        doubled: f(2x), or None if it is unknown.
        result: f(x).

    Returns:
        0, 1 or 2, or None if no such k exists.
    """
    if doubled is None or doubled.shape != result.shape or not result.is_floating_point():
        return None
    # Normalisations add a small constant to the denominator, so their degree is only approximately 0.
    for degree, tolerance in ((1, 1e-6), (2, 1e-6), (0, 1e-2)):
        expected = 2.0**degree * result.detach()
        if float((doubled.to(result) - expected).abs().max()) <= tolerance * float(expected.abs().max()):
            return degree
    return None


def _squared_weights(function: str, producers: list[frozenset[str]]) -> frozenset[str]:
    """Weights that produced both factors of a product."""
    if function not in PRODUCT_FUNCTIONS or not producers:
        return frozenset()
    if len(producers) == 1:
        return producers[0] if function in ("pow", "square") else frozenset()
    return producers[0] & producers[1]
