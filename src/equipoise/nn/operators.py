"""Operators of ``torch.library``, with which torch.compile and torch.export keep the kernels.

A compiler sees tensors only. An operator therefore takes the ``edge_index`` itself and sorts it, through the cache,
when it runs. Without a compiler, the autograd functions of :mod:`equipoise.nn.autograd` and
:mod:`equipoise.nn.sparse_product` are called directly, as they take less time.

Shapes of outputs must not depend on values, but the number of edges does if existing self-loops are replaced. Edge
features therefore have a row for each edge of ``edge_index``, followed by one for each added self-loop, of which the
operators ignore those of replaced edges. Coefficients and dropout masks have as many rows, of which the operators use
the first, in the order by target.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.errors import GraphError
from equipoise.kernels.csr import NumNodes
from equipoise.kernels.simd import MIN_WIDTH
from equipoise.nn.arguments import FEATURE_TYPES, INDEX_TYPES
from equipoise.nn.autograd import (
    AttentionOptions,
    AttentionTensors,
    OptionalTensors,
    compile_attention_kernels,
    gat_forward,
    gat_gradients,
    gatv2_forward,
    gatv2_gradients,
)
from equipoise.nn.dispatch import GRAPH_CACHE
from equipoise.nn.edge_order import UnsortedGraph, edge_order
from equipoise.nn.gcn_weights import unweighted_graph
from equipoise.nn.sparse_product import compile_sparse_kernels, spmm

FourTensors = tuple[Tensor, Tensor, Tensor, Tensor]


class _SortedCall:
    """The sorted graph of an attention operator's call, and its arguments in the order by target."""

    def __init__(self, edge_index: Tensor, sources: int, targets: int, self_loops: bool) -> None:
        _check_edge_index(edge_index)
        self.edge_index, self.self_loops = edge_index, self_loops
        self.nodes: NumNodes = sources if sources == targets else (sources, targets)
        self.rows = UnsortedGraph(edge_index, sources, targets, self_loops).edges
        self.graph = GRAPH_CACHE.get(edge_index, self.nodes, self_loops)

    def _row_of_edge(self) -> Tensor:
        """Row of edge features of each edge in the order by target."""
        order = edge_order(self.edge_index, self.graph, self.nodes, self.self_loops)
        if order.kept is None:
            return order.edges
        loops = torch.arange(self.edge_index.shape[1], self.rows)
        return torch.cat([order.kept, loops])[order.edges]

    def sort_features(self, edge: Tensor | None) -> Tensor | None:
        return None if edge is None else edge.index_select(0, self._row_of_edge())

    def unsort_gradient(self, dedge: Tensor | None) -> Tensor | None:
        """Gradient of edge features, with zeros in ignored rows."""
        if dedge is None:
            return None
        return dedge.new_zeros(self.rows, *dedge.shape[1:]).index_copy_(0, self._row_of_edge(), dedge)

    def pad_coefficients(self, alpha: Tensor) -> Tensor:
        missing = self.rows - self.graph.edges
        return F.pad(alpha, (0, 0, 0, missing)) if missing else alpha

    def options(self, slope: float, dropout_mask: Tensor, relu: bool) -> AttentionOptions:
        return AttentionOptions(slope, dropout_mask[: self.graph.edges], relu)

    def result(self, out: Tensor, coefficients: Tensor, dropout_mask: Tensor) -> AttentionTensors:
        alpha = coefficients[: self.graph.edges]
        return AttentionTensors(out, alpha, alpha * dropout_mask if len(dropout_mask) else alpha)


def _check_edge_index(edge_index: Tensor) -> None:
    """Check shape and dtype of a graph; its indices are checked when it is sorted."""
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype not in INDEX_TYPES:
        raise GraphError(
            f"edge_index is a {edge_index.dtype} tensor of shape {tuple(edge_index.shape)}",
            remedy="pass a torch.long tensor of shape (2, edges)",
        )


def _check(like: Tensor, **arguments: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Check the arguments of an operator, as the kernels read and write without bounds checks.

    Args:
        like: features, whose dtype all arguments must have; channels must be padded.
        arguments: by name, the tensor and its expected shape.

    Raises:
        GraphError: a shape or dtype is wrong.
    """
    if like.dtype not in FEATURE_TYPES or not like.size(-1) or like.size(-1) % MIN_WIDTH:
        raise GraphError(
            f"features are a {like.dtype} tensor of shape {tuple(like.shape)}",
            remedy=f"pass float32 or float64 with channels padded to a multiple of {MIN_WIDTH}",
        )
    for name, (tensor, shape) in arguments.items():
        if tensor is not None and (tuple(tensor.shape) != shape or tensor.dtype != like.dtype):
            raise GraphError(
                f"{name} is a {tensor.dtype} tensor of shape {tuple(tensor.shape)}",
                remedy=f"expected {like.dtype} of shape {shape}",
            )


def _check_gatv2(call: _SortedCall, source: Tensor, target: Tensor | None, edge: Any, att: Any, mask: Tensor) -> None:
    heads = tuple(source.shape[1:])
    targets = len(source if target is None else target)
    _check(
        source,
        source=(source, (len(source), *heads[:1], source.size(-1))),
        target=(target, (targets, *heads)),
        edge=(edge, (call.rows, *heads)),
        att=(att, heads),
        dropout_mask=(mask if len(mask) else None, (call.rows, *heads[:1])),
    )


def _check_gat(call: _SortedCall, z: Tensor, p: Tensor, q: Tensor, edge: Tensor | None, mask: Tensor) -> None:
    heads = tuple(z.shape[1:2])
    _check(
        z,
        z=(z, (len(p), *heads, z.size(-1))),
        p=(p, (len(p), *heads)),
        q=(q, (len(q), *heads)),
        edge=(edge, (call.rows, *heads)),
        dropout_mask=(mask if len(mask) else None, (call.rows, *heads)),
    )


def _check_results(call: _SortedCall, z: Tensor, targets: int, grad: Tensor, out: Tensor, alpha: Tensor) -> None:
    shape = (targets, *z.shape[1:])
    _check(z, grad=(grad, shape), out=(out, shape), alpha=(alpha, (call.rows, z.shape[1])))


def _or_empty(gradients: OptionalTensors, like: Tensor) -> FourTensors:
    """Gradients with an empty tensor for None, which an operator cannot return."""
    tensors = (like.new_empty(0) if gradient is None else gradient for gradient in gradients)
    return cast(FourTensors, tuple(tensors))


def _empty_output(edge_index: Tensor, z: Tensor, targets: int, self_loops: bool) -> tuple[Tensor, Tensor]:
    """Sums and coefficients without values, for fake tensors."""
    edges = UnsortedGraph(edge_index, z.shape[0], targets, self_loops).edges
    return z.new_empty(targets, *z.shape[1:]), z.new_empty(edges, z.shape[1])


def _empty_gradients(*inputs: Tensor | None) -> FourTensors:
    like = next(tensor for tensor in inputs if tensor is not None)
    tensors = (like.new_empty(0 if tensor is None else tensor.shape) for tensor in inputs)
    return cast(FourTensors, tuple(tensors))


@torch.library.custom_op("equipoise::gatv2", mutates_args=(), device_types="cpu")
def gatv2(
    edge_index: Tensor,
    source: Tensor,
    target: Tensor | None,
    edge: Tensor | None,
    att: Tensor,
    slope: float,
    dropout_mask: Tensor,
    relu: bool,
    self_loops: bool,
) -> tuple[Tensor, Tensor]:
    """GATv2 attention: weighted sums, and coefficients before dropout. Only the sums can be differentiated."""
    call = _SortedCall(edge_index, len(source), len(source if target is None else target), self_loops)
    _check_gatv2(call, source, target, edge, att, dropout_mask)
    compile_attention_kernels("gatv2", source.dtype, source.shape[-1], edge is not None)
    options = call.options(slope, dropout_mask, relu)
    result = gatv2_forward(call.graph, source, target, call.sort_features(edge), att, options)
    return result.out, call.pad_coefficients(result.alpha)


@torch.library.custom_op("equipoise::gatv2_backward", mutates_args=(), device_types="cpu")
def gatv2_backward(
    grad: Tensor,
    out: Tensor,
    alpha: Tensor,
    edge_index: Tensor,
    source: Tensor,
    target: Tensor | None,
    edge: Tensor | None,
    att: Tensor,
    slope: float,
    dropout_mask: Tensor,
    relu: bool,
    self_loops: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of source, target, edge and att; empty for None."""
    call = _SortedCall(edge_index, len(source), len(source if target is None else target), self_loops)
    _check_gatv2(call, source, target, edge, att, dropout_mask)
    _check_results(call, source, len(source if target is None else target), grad, out, alpha)
    options = call.options(slope, dropout_mask, relu)
    inputs, result = (source, target, call.sort_features(edge), att), call.result(out, alpha, options.dropout_mask)
    ds, dt, de, da = gatv2_gradients(call.graph, inputs, options, result, grad)
    return _or_empty((ds, dt, call.unsort_gradient(de), da), source)


@gatv2.register_fake
def _(edge_index: Tensor, source: Tensor, target: Tensor | None, *arguments: Any) -> tuple[Tensor, Tensor]:
    targets = (source if target is None else target).shape[0]
    return _empty_output(edge_index, source, targets, self_loops=arguments[-1])


@gatv2_backward.register_fake
def _(*arguments: Any) -> FourTensors:
    return _empty_gradients(*arguments[4:8])


@torch.library.custom_op("equipoise::gat", mutates_args=(), device_types="cpu")
def gat(
    edge_index: Tensor,
    z: Tensor,
    p: Tensor,
    q: Tensor,
    edge: Tensor | None,
    slope: float,
    dropout_mask: Tensor,
    relu: bool,
    self_loops: bool,
) -> tuple[Tensor, Tensor]:
    """GAT attention: weighted sums, and coefficients before dropout. Only the sums can be differentiated."""
    call = _SortedCall(edge_index, len(p), len(q), self_loops)
    _check_gat(call, z, p, q, edge, dropout_mask)
    compile_attention_kernels("gat", z.dtype, z.shape[-1], edge is not None)
    options = call.options(slope, dropout_mask, relu)
    result = gat_forward(call.graph, z, p, q, call.sort_features(edge), options)
    return result.out, call.pad_coefficients(result.alpha)


@torch.library.custom_op("equipoise::gat_backward", mutates_args=(), device_types="cpu")
def gat_backward(
    grad: Tensor,
    out: Tensor,
    alpha: Tensor,
    edge_index: Tensor,
    z: Tensor,
    p: Tensor,
    q: Tensor,
    edge: Tensor | None,
    slope: float,
    dropout_mask: Tensor,
    relu: bool,
    self_loops: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of z, p, q and edge; empty for None."""
    call = _SortedCall(edge_index, len(p), len(q), self_loops)
    _check_gat(call, z, p, q, edge, dropout_mask)
    _check_results(call, z, len(q), grad, out, alpha)
    options = call.options(slope, dropout_mask, relu)
    inputs, result = (z, p, q, call.sort_features(edge)), call.result(out, alpha, options.dropout_mask)
    dz, dp, dq, de = gat_gradients(call.graph, inputs, options, result, grad)
    return _or_empty((dz, dp, dq, call.unsort_gradient(de)), z)


@gat.register_fake
def _(edge_index: Tensor, z: Tensor, _p: Tensor, q: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return _empty_output(edge_index, z, q.shape[0], self_loops=arguments[-1])


@gat_backward.register_fake
def _(*arguments: Any) -> FourTensors:
    return _empty_gradients(*arguments[4:8])


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.slope, dropout_mask, ctx.relu, ctx.self_loops = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *tensors, dropout_mask)


def _attention_gradients(operator: Any, ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    *tensors, dropout_mask = ctx.saved_tensors
    gradients = operator(grad, *tensors, ctx.slope, dropout_mask, ctx.relu, ctx.self_loops)
    inputs = tensors[3:]  # after the two outputs and edge_index
    used = (None if tensor is None else gradient for gradient, tensor in zip(gradients, inputs, strict=True))
    return None, *used, None, None, None, None


def _gatv2_autograd(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    return _attention_gradients(gatv2_backward, ctx, grad)


def _gat_autograd(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    return _attention_gradients(gat_backward, ctx, grad)


gatv2.register_autograd(_gatv2_autograd, setup_context=_save_attention)
gat.register_autograd(_gat_autograd, setup_context=_save_attention)


@torch.library.custom_op("equipoise::gcn", mutates_args=(), device_types="cpu")
def gcn(edge_index: Tensor, z: Tensor, normalize: bool, self_loops: bool, transposed: bool) -> Tensor:
    """GCN's weighted sum A z over neighbours; Aᵀ z if ``transposed``. It can be differentiated any number of times."""
    _check_edge_index(edge_index)
    _check(z, z=(z, (len(z), z.size(-1))))
    compile_sparse_kernels(z.dtype, z.shape[1])
    graph, weight = unweighted_graph(edge_index, len(z), self_loops, normalize, z.dtype)
    return spmm(graph.by_source if transposed else graph.by_target, weight, z)


@gcn.register_fake
def _(_edge_index: Tensor, z: Tensor, *_options: bool) -> Tensor:
    return z.new_empty(z.shape)


def _save_gcn(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch passes it by name)
    edge_index, _, *ctx.options, ctx.transposed = inputs
    ctx.save_for_backward(edge_index)


def _gcn_autograd(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (edge_index,) = ctx.saved_tensors
    return None, gcn(edge_index, grad, *ctx.options, not ctx.transposed), None, None, None


gcn.register_autograd(_gcn_autograd, setup_context=_save_gcn)
