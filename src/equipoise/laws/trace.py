"""What a network calls, in order: functions, the parameters they read, and how they behave when their input is doubled.

Seen through a ``TorchFunctionMode``, so that plain functions count as well as modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

PRODUCTS = {
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
SCALE_FREE = {"exp", "softmax", "sigmoid"}  # what comes out is a coefficient, no longer a feature


@dataclass(frozen=True)
class Call:
    """One call of a torch function.

    Attributes:
        function: its name.
        reads: the parameters among its arguments, each with its position.
        degree: k if doubling the features doubles the result k times over; None if neither 0, 1 nor 2, or not tried.
        pointwise: whether it turns one tensor of features into another of the same shape.
        squares: the weights whose outputs it multiplies with themselves.
    """

    function: str
    reads: tuple[tuple[str, int], ...] = ()
    degree: int | None = None
    pointwise: bool = False
    squares: frozenset[str] = frozenset()

    @property
    def spoils(self) -> bool:
        """Whether a law cannot pass through: not positively homogeneous, and no weight that could make up for it."""
        return self.pointwise and (self.degree == 0 if self.reads else self.degree != 1)


class Trace(TorchFunctionMode):
    """Records the calls made while it is active; with ``examine``, also what they do to their features."""

    def __init__(self, parameters: Mapping[str, Tensor], examine: bool = False) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.modules: list[Call] = []
        self.examine = examine
        self.returned: frozenset[str] = frozenset()  # the weights whose features the network returns
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._weights = {name for name, p in parameters.items() if sum(size > 1 for size in p.shape) > 1}
        self._made_by: dict[int, frozenset[str]] = {}  # tensor → the weights it is a feature of
        self._random_states: dict[int, Tensor] = {}
        self._asking = False  # while a call is tried with doubled features
        self._alive: list[Any] = []  # an id is only good while its tensor lives

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._asking:
            return func(*args, **kwargs)
        call = Call(getattr(func, "__name__", str(func)), tuple(self._reads(args, kwargs)))
        doubled = self._doubled(func, args, kwargs) if self.examine else None
        features = self._features((args, kwargs))
        makers = [self._made_by.get(id(feature), frozenset()) for feature in features]
        shape = features[0].shape if features else None
        result = func(*args, **kwargs)
        if not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(result)):
            return result  # shapes, dtypes, indices
        if self.examine and isinstance(result, Tensor):
            same_shape = doubled is not None and len(features) == 1 and result.shape == shape
            call = replace(
                call, degree=degree_of(doubled, result), pointwise=same_shape, squares=_squares(call, makers)
            )
            weights = frozenset(name for name, _ in call.reads if name in self._weights)
            kept = frozenset() if call.function in SCALE_FREE else frozenset().union(*makers)
            self._made_by[id(result)] = weights or kept
            self._alive.append(result)
        self.calls.append(call)
        return result

    def before_module(self, module: nn.Module, _: tuple[Any, ...]) -> None:
        """A forward pre-hook: keeps the random state, so that a submodule can be asked again with the same numbers."""
        self._random_states[id(module)] = torch.get_rng_state()

    def after_module(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        """A forward hook that records a submodule like a function, if it turns one tensor into another of its shape."""
        feature = args[0] if args else None
        if isinstance(feature, Tensor) and isinstance(result, Tensor) and feature.shape == result.shape:
            now = torch.get_rng_state()
            torch.set_rng_state(self._random_states[id(module)])
            doubled = self._doubled(module.forward, args, {})
            torch.set_rng_state(now)
            reads = tuple((name, 0) for name in map(self._names.get, map(id, module.parameters())) if name)
            self.modules.append(Call(type(module).__name__, reads, degree_of(doubled, result), pointwise=True))

    def makers(self, tensor: Tensor) -> frozenset[str]:
        """The weights that a tensor is a feature of: those that no other weight has read since."""
        return self._made_by.get(id(tensor), frozenset())

    def uses(self, name: str) -> int:
        """How many calls read a parameter."""
        return sum(name == read for call in self.calls for read, _ in call.reads)

    def places(self) -> dict[str, int]:
        """When each parameter is read first."""
        places: dict[str, int] = {}
        for place, call in enumerate(self.calls):
            for name, _ in call.reads:
                places.setdefault(name, place)
        return places

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

    def _doubled(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor | None:
        """What the call gives for twice the features, with the same random numbers."""
        name = getattr(func, "__name__", "")
        writes = name.endswith("_") and not name.endswith("__")
        if not self._features((args, kwargs)) or (writes and not self._is_feature(args[0])):
            return None  # a scatter writes into something that is no feature: asking twice would write twice
        state = torch.get_rng_state()
        self._asking = True
        try:
            with torch.no_grad():
                twice = tree_map(lambda leaf: 2.0 * leaf.detach() if self._is_feature(leaf) else leaf, (args, kwargs))
                result = func(*twice[0], **twice[1])
        except Exception:  # some functions insist on what they are given; then nothing is known of them
            return None
        finally:
            self._asking = False
            torch.set_rng_state(state)
        return result if isinstance(result, Tensor) else None


class Without(TorchFunctionMode):
    """Leaves out pointwise functions by name: their features pass through unchanged."""

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


def degree_of(doubled: Tensor | None, result: Tensor) -> int | None:
    """k if the result for doubled features is 2^k times the result; None if k is neither 0, 1 nor 2."""
    if doubled is None or doubled.shape != result.shape or not result.is_floating_point():
        return None
    # A normalisation divides by its features' size plus a small constant: nearly, not exactly, of degree 0.
    for degree, tolerance in ((1, 1e-6), (2, 1e-6), (0, 1e-2)):
        expected = 2.0**degree * result.detach()
        if float((doubled.to(result) - expected).abs().max()) <= tolerance * float(expected.abs().max()):
            return degree
    return None


def _squares(call: Call, makers: list[frozenset[str]]) -> frozenset[str]:
    if call.function not in PRODUCTS or not makers:
        return frozenset()
    if len(makers) == 1:
        return makers[0] if call.function in ("pow", "square") else frozenset()
    return makers[0] & makers[1]
