"""Dispatch of a layer call to the fused kernels or to PyG's implementation."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch_geometric.nn import GATConv, GCNConv, MessagePassing

from equipoise.errors import ChoiceError, GraphError
from equipoise.kernels.csr import GraphCache
from equipoise.nn.hooks import has_message_hooks

ENGINE_VARIABLE = "EQUIPOISE_ENGINE"
ENGINES = ("fused", "reference")
INDEX_TYPES = (torch.int64, torch.int32)
CONVERTED_INDEX_TYPES = (torch.int16, torch.int8, torch.uint8, torch.bool)  # by PyG, if it adds self-loops
FEATURE_TYPES = (torch.float32, torch.float64)

# Shared by all layers, so that the edges of a graph are sorted once and not once per layer.
GRAPH_CACHE = GraphCache()


def fallback_reason(conv: MessagePassing, x: Any, edge_index: Any, *extras: Any) -> str:
    """Why a call has to use PyG's implementation; empty if the fused kernels support it.

    Args:
        conv: the layer.
        x: its input features.
        edge_index: its graph.
        extras: other arguments of the call, which the kernels support only as None.

    Returns:
        The first reason that applies.

    Raises:
        GraphError: PyG does not accept the arguments either.
    """
    if not _fused_enabled():
        return f"{ENGINE_VARIABLE}=reference"
    if not isinstance(x, Tensor):
        return "bipartite input"
    if any(extra is not None for extra in extras):
        return "edge features, edge weights or requested attention weights"
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        return "sparse adjacency matrix"
    if type(x) not in (Tensor, nn.Parameter) or type(edge_index) is not Tensor:
        return "tensor subclass"
    return _mode_reason() or _layer_reason(conv) or _tensor_reason(conv, x, edge_index)


def _mode_reason() -> str:
    """A mode of torch in which operations must be visible to it."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return "torch.compile, torch.export or torch.jit.trace"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "function transform (torch.func)"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    if torch.is_autocast_enabled("cpu"):
        return "autocast"
    if torch._C._len_torch_dispatch_stack():
        return "torch dispatch mode"
    return ""


def _layer_reason(conv: MessagePassing) -> str:
    """An option of the layer that the kernels do not support."""
    if conv.flow != "source_to_target" or conv.aggr not in ("add", "sum"):
        return "flow='target_to_source' or an aggregation other than sum"
    if conv.explain or has_message_hooks(conv):
        return "explainer or message passing hooks"
    if isinstance(conv, GATConv) and conv.lin is None:
        return "separate weights for source and target nodes"
    if isinstance(conv, GCNConv) and (not conv.normalize or conv.cached):
        return "normalize=False or cached=True"
    return ""


def _tensor_reason(conv: MessagePassing, x: Tensor, edge_index: Tensor) -> str:
    if edge_index.dtype in CONVERTED_INDEX_TYPES:
        return f"edge_index of {edge_index.dtype}"
    check_edge_index(conv, edge_index)
    if x.device.type != "cpu" or edge_index.device.type != "cpu":
        return f"features on {x.device.type}"
    if x.dtype not in FEATURE_TYPES:
        return f"features of {x.dtype}"
    if x.layout != torch.strided and x.requires_grad:
        return "gradient of sparse features"
    if x.dim() != 2:
        if isinstance(conv, GCNConv):
            return f"features of {x.dim()} dimensions"
        raise GraphError(
            f"{type(conv).__name__}: x has {x.dim()} dimensions, expected 2",
            where=f"x of shape {tuple(x.shape)}",
            remedy="pass (nodes, features); merge a batch of graphs into one with torch_geometric.data.Batch",
        )
    return ""


def check_edge_index(conv: nn.Module, edge_index: Tensor) -> None:
    """Check type and shape of ``edge_index``; its indices are checked when the graph is sorted.

    Args:
        conv: the layer, for the message.
        edge_index: the argument.

    Raises:
        GraphError: it is not a (2, edges) tensor of integers.
    """
    if edge_index.dtype in INDEX_TYPES and edge_index.dim() == 2 and edge_index.size(0) == 2:
        return
    if edge_index.dtype not in INDEX_TYPES:
        problem = f"is a {str(edge_index.dtype).removeprefix('torch.')} tensor, expected integers"
    elif edge_index.dim() != 2:
        problem = f"has {edge_index.dim()} dimension{'s' * (edge_index.dim() != 1)}, expected 2"
    else:
        problem = f"has shape {tuple(edge_index.shape)}, expected (2, edges)"
    raise GraphError(
        f"{type(conv).__name__}: edge_index {problem}",
        remedy="pass a torch.long tensor of shape (2, edges): sources in row 0, targets in row 1",
    )


def _fused_enabled() -> bool:
    engine = os.environ.get(ENGINE_VARIABLE, "fused")
    if engine not in ENGINES:
        raise ChoiceError(f"engine in {ENGINE_VARIABLE}", engine, ENGINES)
    return engine == "fused"
