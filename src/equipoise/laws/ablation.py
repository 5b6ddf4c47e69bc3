"""Ablation: replace functions and submodules that keep the shape of their input by the identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def ablated(model: nn.Module, names: frozenset[str]) -> Iterator[None]:
    """Replace functions and submodules of a model by the identity within the context, where shapes allow.

    Args:
        model: The model.
        names: Names of torch functions and of module classes.
    """
    if not names:
        yield
        return
    modules = [module for module in model.modules() if type(module).__name__ in names]
    handles = [module.register_forward_hook(_return_input, prepend=True) for module in modules]
    try:
        with _AblateFunctions(names):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _return_input(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    same = bool(args) and isinstance(output, Tensor) and getattr(args[0], "shape", None) == output.shape
    return args[0] if same else output


class _AblateFunctions(TorchFunctionMode):
    """Replaces shape-preserving functions by the identity."""

    def __init__(self, functions: frozenset[str]) -> None:
        super().__init__()
        self.functions = functions

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in self.functions and args and isinstance(result, Tensor):
            feature = args[0]
            if isinstance(feature, Tensor) and feature.shape == result.shape:
                return feature.clone()
        return result
