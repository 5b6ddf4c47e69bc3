"""Observer hooks: forward hooks that only read, and therefore do not split a fused stack into its layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch_geometric.nn import MessagePassing

from equipoise.kernels.csr import CSRGraph


@dataclass(frozen=True)
class AttentionCoefficients:
    """Attention coefficients as the kernels write them.

    Attributes:
        graph: the graph, whose order by target the edges follow.
        alpha: (edges, heads).
    """

    graph: CSRGraph
    alpha: Tensor


class ObserverHook(ABC):
    """A forward hook that reads values, does not modify them, and returns None.

    Register it with ``with_kwargs=True``. A stack that runs as one function calls the hook with the input and output of
    each layer, outside the autograd graph, and passes :class:`AttentionCoefficients` as ``kwargs["attention"]``. Where
    layer and activation are fused, the output is the one after the activation. The next forward pass of such a stack
    overwrites these tensors: clone what is to be kept longer.
    """

    @abstractmethod
    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None: ...


def observers_of(module: nn.Module) -> list[ObserverHook]:
    """Observer hooks of a module."""
    return [hook for hook in module._forward_hooks.values() if isinstance(hook, ObserverHook)]


def has_hooks(*modules: nn.Module) -> bool:
    """Whether a hook other than observers, or a torch function mode, could intercept calls of these modules."""
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
        or torch._C._len_torch_function_stack()
        or any(
            m._forward_pre_hooks
            or m._backward_hooks
            or m._backward_pre_hooks
            or (m._forward_hooks and not all(isinstance(hook, ObserverHook) for hook in m._forward_hooks.values()))
            for m in modules
        )
    )


CALL_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
MESSAGE_HOOKS = tuple(
    f"_{step}_forward_{when}hooks"
    for step in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for when in ("pre_", "")
)


def has_message_hooks(conv: MessagePassing) -> bool:
    """Whether PyG's hooks are registered on steps of message passing that a fused kernel does not execute."""
    attributes, aggregation = conv.__dict__, conv.aggr_module
    return any(attributes[name] for name in MESSAGE_HOOKS) or bool(
        aggregation._forward_pre_hooks
        or aggregation._forward_hooks
        or aggregation._backward_pre_hooks
        or aggregation._backward_hooks
    )
