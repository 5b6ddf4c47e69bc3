"""Which path each graph layer of a model takes, the fused kernels or PyG's own, and why."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch_geometric.nn import MessagePassing

from equipoise.errors import ForwardError
from equipoise.laws.checks import check_module, first_line
from equipoise.nn.engine import obstacle
from equipoise.nn.fuse import FUSED

FUSED_CALL = "fused", "the kernels serve this call"
NOT_CALLED = "none", "not called on these inputs"


@dataclass(frozen=True)
class LayerPath:
    """A layer by its name in the model, its class, the path that a call of it takes, and why.

    Paths are ``"fused"``, ``"PyG"`` and, for a layer that is not called, ``"none"``.
    """

    name: str
    layer: str
    path: str
    reason: str


def layer_paths(model: nn.Module, *inputs: Any, **kwargs: Any) -> list[LayerPath]:
    """Run a model once and say which path each call of a graph layer took.

    A layer that is called in several ways has an entry for each.

    Example:
        >>> from equipoise import Stack
        >>> layer_paths(Stack("gatv2", [8, 16, 3]), torch.randn(4, 8), torch.zeros(2, 0, dtype=torch.long))[0]
        LayerPath(name='convs.0', layer='FusedGATv2Conv', path='fused', reason='the kernels serve this call')
    """
    check_module(model)
    convs = {name: conv for name, conv in model.named_modules() if isinstance(conv, MessagePassing)}
    seen: dict[str, list[tuple[str, str]]] = {name: [] for name in convs}
    hooks = [conv.register_forward_pre_hook(_watch(seen[name]), with_kwargs=True) for name, conv in convs.items()]
    try:
        with torch.no_grad():
            model(*inputs, **kwargs)
    except Exception as error:
        raise ForwardError(
            f"the model does not run on these inputs: {first_line(error)}",
            where=type(model).__name__,
            remedy="return inputs from the factory with which model(*inputs) works",
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return [
        LayerPath(name or "(the model)", type(conv).__name__, *path)
        for name, conv in convs.items()
        for path in dict.fromkeys(seen[name]) or (NOT_CALLED,)
    ]


def path_table(paths: list[LayerPath]) -> Table:
    """One row a layer."""
    table = Table("layer", "class", "path", "why")
    for path in paths:
        table.add_row(path.name, path.layer, path.path, path.reason)
    return table


def _watch(paths: list[tuple[str, str]]) -> Any:
    def hook(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        reason = _reason(conv, args, kwargs)
        paths.append(("PyG", reason) if reason else FUSED_CALL)

    return hook


def _reason(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why PyG's own path is taken; empty if it is not."""
    kind = type(conv)
    if kind in FUSED.values():
        call = inspect.signature(kind.forward).bind(conv, *args, **kwargs)
        call.apply_defaults()
        call.arguments.pop("relu", None)  # ours, and no obstacle
        _, x, edge_index, *extras = call.arguments.values()
        return obstacle(conv, x, edge_index, *extras)
    if kind in FUSED:
        return "stock layer: call fuse_ first"
    relative = next((stock.__name__ for stock in FUSED if issubclass(kind, stock)), "")
    if relative:
        return f"a class of its own, made from {relative}: fuse_ leaves such layers alone"
    return f"there is no fused {kind.__name__}"
