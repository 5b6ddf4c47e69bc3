"""Report which code path each graph layer of a model takes, the fused kernels or PyG's own, and why."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch_geometric.nn import MessagePassing

from equipoise.errors import ForwardError
from equipoise.laws.validation import check_module, summarize_error
from equipoise.nn.dispatch import fallback_reason
from equipoise.nn.fused_convs import FUSED_CLASSES

FUSED_CALL = "fused", "the fused kernels support this call"
NOT_CALLED = "none", "not called on these inputs"


@dataclass(frozen=True)
class LayerPath:
    """Code path of one call of a layer.

    Attributes:
        name: Name of the layer in the model.
        layer: Name of its class.
        path: ``"fused"``, ``"PyG"``, or ``"none"`` for a layer that is not called.
        reason: Why this path is taken.
    """

    name: str
    layer: str
    path: str
    reason: str


def layer_paths(model: nn.Module, *inputs: Any, **kwargs: Any) -> list[LayerPath]:
    """Run a model once and report the code path of each call of a graph layer.

    Args:
        model: Any torch network.
        *inputs: Inputs of ``model(*inputs, **kwargs)``.
        **kwargs: Named inputs.

    Returns:
        One entry per layer; several for a layer whose calls take different paths.

    Raises:
        ForwardError: If the model does not run on these inputs.

    Example:
        >>> from equipoise import Stack
        >>> layer_paths(Stack("gatv2", [8, 16, 3]), torch.randn(4, 8), torch.zeros(2, 0, dtype=torch.long))[0]
        LayerPath(name='convs.0', layer='FusedGATv2Conv', path='fused', reason='the fused kernels support this call')
    """
    check_module(model)
    convs = {name: conv for name, conv in model.named_modules() if isinstance(conv, MessagePassing)}
    calls: dict[str, list[tuple[str, str]]] = {name: [] for name in convs}
    hooks = [conv.register_forward_pre_hook(_path_hook(calls[name]), with_kwargs=True) for name, conv in convs.items()]
    try:
        with torch.no_grad():
            model(*inputs, **kwargs)
    except Exception as error:
        raise ForwardError(
            f"the model does not run on these inputs: {summarize_error(error)}",
            where=type(model).__name__,
            remedy="return inputs from the factory with which model(*inputs) works",
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return [
        LayerPath(name or "(the model)", type(conv).__name__, *path)
        for name, conv in convs.items()
        for path in dict.fromkeys(calls[name]) or (NOT_CALLED,)
    ]


def path_table(paths: list[LayerPath]) -> Table:
    """A table with one row per entry."""
    table = Table("layer", "class", "path", "reason")
    for path in paths:
        table.add_row(path.name, path.layer, path.path, path.reason)
    return table


def _path_hook(calls: list[tuple[str, str]]) -> Any:
    def hook(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        reason = _pyg_reason(conv, args, kwargs)
        calls.append(("PyG", reason) if reason else FUSED_CALL)

    return hook


def _pyg_reason(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why a call takes PyG's own path; empty if it takes the fused one."""
    kind = type(conv)
    if kind in FUSED_CLASSES.values():
        call = inspect.signature(kind.forward).bind(conv, *args, **kwargs)
        call.apply_defaults()
        arguments = call.arguments
        edge_attr = arguments.get("edge_attr", arguments.get("edge_weight"))
        x, edge_index, size = arguments["x"], arguments["edge_index"], arguments.get("size")
        return fallback_reason(conv, x, edge_index, edge_attr=edge_attr, size=size)
    if kind in FUSED_CLASSES:
        return "stock layer: call fuse_ first"
    base = next((stock.__name__ for stock in FUSED_CLASSES if issubclass(kind, stock)), "")
    if base:
        return f"a subclass of {base}: fuse_ replaces only the class itself"
    return f"there is no fused {kind.__name__}"
