"""Attention over neighbours: the sorted graph, features and parameters in, weighted sums and coefficients out."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from equipoise.errors import GraphError
from equipoise.nn import operators
from equipoise.nn.autograd import AttentionOptions, GATFunction, GATv2Function, compile_attention_kernels
from equipoise.nn.edge_order import Graph, UnsortedGraph
from equipoise.nn.kernel_arrays import pad_channels, promote


def gatv2_attention(
    graph: Graph,
    source: Tensor,
    target: Tensor | None,
    att: Tensor,
    slope: float,
    dropout: float = 0.0,
    relu: bool = False,
    *,
    edge: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GATv2 attention, Σ_k α_k source[u] with α = softmax a · LeakyReLU(source[u] + target[v] + edge[k]).

    Args:
        graph: the graph; unsorted in a call that torch.compile or torch.export traces.
        source: projected source features (sources, heads, channels).
        target: projected target features (targets, heads, channels); None if they are the source features.
        att: the attention vector a, (heads, channels).
        slope: negative slope of the LeakyReLU.
        dropout: probability with which coefficients are dropped.
        relu: apply a ReLU to the sums in the same kernel.
        edge: projected edge features (edges, heads, channels), in the order by target; None without.

    Returns:
        The sums (targets, heads, channels), and the coefficients after dropout (edges, heads) in the order by target.
        In a traced call only the sums can be differentiated.

    Raises:
        GraphError: ``edge`` does not have one row of heads and channels per edge, or those of ``att`` or ``target`` are
            not those of ``source``.
    """
    row = source.shape[1:]
    check_shape("att", att, row)
    if target is not None:
        check_shape("target", target, (target.shape[0], *row))
    source, target, att, edge = promote(source, target, att, edge)
    if edge is not None:
        check_shape("the projection of edge_attr", edge, (graph.edges, *row), "lin_edge")
    inputs = [features if features is None else pad_channels(features) for features in (source, target, edge, att)]
    options = AttentionOptions(slope, dropout_mask(graph, source, dropout), relu)
    if isinstance(graph, UnsortedGraph):
        out, weight = operators.gatv2(graph.edge_index, *inputs, *options, graph.self_loops)
    else:
        compile_attention_kernels("gatv2", source.dtype, source.shape[-1], edge is not None)
        out, weight = GATv2Function.apply(graph, *inputs, options)  # type: ignore[no-untyped-call]
    return out[..., : source.shape[-1]], weight


def gat_attention(
    graph: Graph,
    z: Tensor,
    p: Tensor,
    q: Tensor,
    slope: float,
    dropout: float = 0.0,
    relu: bool = False,
    *,
    edge: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GAT attention, Σ_k α_k z[u] with α = softmax LeakyReLU(p[u] + q[v] + edge[k]).

    Args:
        graph: the graph; unsorted in a call that torch.compile or torch.export traces.
        z: projected source features (sources, heads, channels).
        p: scores of sources, (sources, heads).
        q: scores of targets, (targets, heads).
        slope: negative slope of the LeakyReLU.
        dropout: probability with which coefficients are dropped.
        relu: apply a ReLU to the sums in the same kernel.
        edge: scores of edges (edges, heads), in the order by target; None without.

    Returns:
        The sums (targets, heads, channels), and the coefficients after dropout (edges, heads) in the order by target.
        In a traced call only the sums can be differentiated.

    Raises:
        GraphError: ``edge`` does not have one row of heads per edge, or ``p`` or ``q`` not the heads of ``z``.
    """
    check_shape("p", p, z.shape[:2])
    check_shape("q", q, (q.shape[0], z.shape[1]))
    z, p, q, edge = promote(z, p, q, edge)
    if edge is not None:
        check_shape("the projection of edge_attr", edge, (graph.edges, *p.shape[1:]), "lin_edge")
    options = AttentionOptions(slope, dropout_mask(graph, z, dropout), relu)
    if isinstance(graph, UnsortedGraph):
        out, weight = operators.gat(graph.edge_index, pad_channels(z), p, q, edge, *options, graph.self_loops)
    else:
        compile_attention_kernels("gat", z.dtype, z.shape[-1], edge is not None)
        out, weight = GATFunction.apply(graph, pad_channels(z), p, q, edge, options)  # type: ignore[no-untyped-call]
    return out[..., : z.shape[-1]], weight


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...], linear: str = "a linear map") -> None:
    """Check the shape of an argument: kernels read it without bounds checks, and any module may compute it."""
    if tensor.shape != expected:
        raise GraphError(
            f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected)}",
            remedy=f"a hook of {linear}, or a module that replaces it, must keep the shape of its output",
        )


def dropout_mask(graph: Graph, like: Tensor, dropout: float) -> Tensor:
    """Factors 1/(1−p) or 0 of the coefficients, (edges, heads); empty without dropout."""
    if not dropout:
        return like.new_empty(0)
    return F.dropout(like.new_ones(graph.edges, like.shape[1]), dropout)
