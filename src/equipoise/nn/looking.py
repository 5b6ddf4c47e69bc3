"""Who looks at what goes through a network: fused layers come apart for hooks, but not for those that only look."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from equipoise.kernels.csr import Graph


@dataclass(frozen=True)
class Coefficients:
    """Attention as kernels leave it: (edges, heads), edges in the graph's order."""

    graph: Graph
    alpha: Tensor


class Look(ABC):
    """A forward hook, to be registered ``with_kwargs=True``, that reads values, leaves them alone, and returns nothing.

    A stack that runs as one function stays one: it shows what each layer read and wrote, without a graph of gradients
    behind it, and its :class:`Coefficients` as ``named["attention"]``. What a layer wrote comes after the activation
    wherever the two are one.
    """

    @abstractmethod
    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None: ...


def looks_of(module: nn.Module) -> list[Look]:
    """The hooks of a module that only look."""
    return [hook for hook in module._forward_hooks.values() if isinstance(hook, Look)]


def watched(*modules: nn.Module) -> bool:
    """Whether anybody may do more than look at what goes through these modules, by hooks or by a function mode."""
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch._C._len_torch_function_stack()
        or any(module._forward_pre_hooks or module._backward_hooks for module in modules)
        or any(not isinstance(hook, Look) for module in modules for hook in module._forward_hooks.values())
    )
