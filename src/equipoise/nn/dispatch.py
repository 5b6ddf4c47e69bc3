"""Dispatch of a layer call to the fused kernels or to PyG's implementation."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch_geometric.nn import GCNConv, GINConv, GraphConv, MessagePassing, SAGEConv
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from equipoise.distributed.graph import DistributedGraph
from equipoise.errors import ChoiceError, GraphError
from equipoise.kernels.graph_cache import GraphCache
from equipoise.nn.arguments import (
    MalformedCall,
    edge_attr_reason,
    edge_index_reason,
    feature_reason,
    input_reason,
    parameter_reason,
    traced_reason,
)
from equipoise.nn.hooks import has_message_hooks
from equipoise.nn.sparse_linear import check_sparse

ENGINE_VARIABLE = "EQUIPOISE_ENGINE"
ENGINES = ("fused", "reference")

# Shared by all layers, so that the edges of a graph are sorted once and not once per layer.
GRAPH_CACHE = GraphCache()


def get_or_build(edge_index: Tensor | DistributedGraph, key: Hashable, build: Callable[[], Any]) -> Any:
    """A value that derives from the graph of a call, such as edge weights; built once per graph.

    Args:
        edge_index: the graph.
        key: tells several values of one graph apart.
        build: computes the value.

    Returns:
        The value.
    """
    if isinstance(edge_index, DistributedGraph):
        return edge_index.cached(key, build)
    return GRAPH_CACHE.get_or_build(edge_index, key, build)


def call_pyg(conv: MessagePassing, reason: str, forward: Callable[..., Any], *arguments: Any) -> Any:
    """Call PyG's implementation of a layer.

    Args:
        conv: the layer.
        reason: result of :func:`fallback_reason`.
        forward: PyG's method.
        arguments: its arguments.

    Returns:
        PyG's result.

    Raises:
        GraphError: PyG rejects a malformed call.
    """
    try:
        return forward(*arguments)
    except Exception as error:
        if isinstance(reason, MalformedCall) and not isinstance(error, GraphError):
            raise GraphError(f"{type(conv).__name__}: {reason}", where=str(error), remedy=reason.remedy) from error
        raise


def fallback_reason(
    conv: MessagePassing,
    x: Any,
    edge_index: Any,
    *extras: Any,
    edge_attr: Any = None,
    size: Any = None,
    return_attention_weights: bool | None = None,
) -> str:
    """Why a call has to use PyG's implementation; empty if the fused kernels support it.

    Args:
        conv: the layer.
        x: its input features; of all layers but GCN also a pair for sources and targets.
        edge_index: its graph.
        extras: other arguments of the call, which the kernels support only as None.
        edge_attr: edge features of attention layers, edge weights of GCN and GraphConv.
        size: numbers of sources and targets, where the layer takes them.
        return_attention_weights: whether the coefficients are returned as well.

    Returns:
        The first reason that applies.

    Raises:
        GraphError: PyG does not accept the arguments either, or the graph is distributed and the kernels do not support
            the call.
    """
    if isinstance(edge_index, DistributedGraph):
        edge_index.check_features(x, type(conv).__name__)
        reason = fallback_reason(conv, x, edge_index.edge_index, *extras, edge_attr=edge_attr)
        return _refuse(conv, reason or ("" if size is None else f"size={size}"))
    for part in x if isinstance(x, tuple | list) else (x,):
        if isinstance(part, Tensor) and part.layout != torch.strided and not torch.compiler.is_compiling():
            check_sparse(part)
    other = any(extra is not None for extra in extras)
    if other or not _fused_enabled():
        return "arguments other than features and graph" if other else f"{ENGINE_VARIABLE}=reference"
    if torch.compiler.is_compiling():
        option = "traced call with size or attention weights" if size or return_attention_weights else ""
        return option or _autocast_reason() or layer_reason(conv) or traced_reason(conv, x, edge_index, edge_attr)
    if isinstance(conv, GCNConv) and conv.cached and isinstance(edge_index, Tensor) and conv._cached_edge_index:
        edge_index, edge_attr = conv._cached_edge_index  # instead of the arguments, which PyG ignores
    if type(edge_index) is not Tensor or edge_index.layout != torch.strided:
        sparse = not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided
        return "sparse adjacency matrix" if sparse else "tensor subclass"
    reason = _mode_reason() or _autocast_reason() or layer_reason(conv) or edge_index_reason(conv, edge_index)
    if reason:
        return reason
    plain = isinstance(x, Tensor) and size is None
    return (
        (feature_reason(conv, x) if plain else input_reason(conv, x, size))
        or edge_attr_reason(conv, edge_index, edge_attr)
        or parameter_reason(conv)
    )


def _refuse(conv: MessagePassing, reason: str) -> str:
    """Raise :class:`GraphError` if a call on a distributed graph needs PyG's implementation, which knows none."""
    if torch.compiler.is_compiling():
        reason = "traced call (torch.compile, torch.export)"
    if isinstance(reason, MalformedCall):
        raise GraphError(f"{type(conv).__name__}: {reason}", remedy=reason.remedy)
    if reason:
        raise GraphError(
            f"{type(conv).__name__} on a DistributedGraph: the fused kernels do not support the call",
            where=reason,
            remedy="change the option, or train in one process",
        )
    return ""


def _mode_reason() -> str:
    """A mode of torch in which operations must be visible to it."""
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "function transform (torch.func)"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    if torch._C._len_torch_dispatch_stack():
        return "torch dispatch mode"
    return ""


def _autocast_reason() -> str:
    return "autocast" if torch.is_autocast_enabled("cpu") else ""


def layer_reason(conv: MessagePassing) -> str:
    """An option of the layer that the kernels do not support."""
    aggregations = (SumAggregation, *((MeanAggregation,) if isinstance(conv, SAGEConv | GraphConv | GINConv) else ()))
    # torch.export replaces modules by instances of a subclass, so the exact type does not tell.
    if not any(
        isinstance(conv.aggr_module, kind) and type(conv.aggr_module).forward is kind.forward for kind in aggregations
    ):
        return f"aggregation {conv.aggr}"
    if conv.flow != "source_to_target" or conv.node_dim not in (-2, 0) or conv.decomposed_layers != 1:
        return "flow='target_to_source', node_dim or decomposed_layers"
    if conv.explain or has_message_hooks(conv):
        return "explainer or message passing hooks"
    return ""


def _fused_enabled() -> bool:
    engine = os.environ.get(ENGINE_VARIABLE, "fused")
    if engine not in ENGINES:
        raise ChoiceError(f"engine in {ENGINE_VARIABLE}", engine, ENGINES)
    return engine == "fused"
