"""The kernels as differentiable functions of tensors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from equipoise.kernels import gat, gatv2
from equipoise.kernels.csr import CSRGraph, build_graph
from equipoise.kernels.simd import padded_channels
from equipoise.nn.launch import (
    NO_POSITIONS,
    AttentionOutput,
    attention_forward,
    edge_dot,
    flat_arrays,
    gat_backward,
    gatv2_backward,
    head_shape,
    spmm,
)
from equipoise.nn.second_order import differentiable_gradients, gat_scores, gatv2_scores, softmax_sum

log = logging.getLogger("equipoise")

COMPILE_NOTICE_SECONDS = 2.0  # loading compiled kernels from the cache takes less


def gatv2_attention(
    graph: CSRGraph,
    source: Tensor,
    target: Tensor | None,
    att: Tensor,
    slope: float,
    dropout: float = 0.0,
    relu: bool = False,
) -> Tensor:
    """GATv2 attention, Σ_u α_uv source[u] with α_uv = softmax_u a · LeakyReLU(source[u] + target[v]).

    Args:
        graph: the graph.
        source: projected source features (nodes, heads, channels).
        target: projected target features of the same shape; None if weights are shared.
        att: the attention vector a, (heads, channels).
        slope: negative slope of the LeakyReLU.
        dropout: probability with which coefficients are dropped.
        relu: apply a ReLU to the result in the same kernel.

    Returns:
        (nodes, heads, channels).
    """
    source, target, att = promote(source, target, att)
    compile_kernels("gatv2", source.dtype, source.shape[-1])
    padded = [pad_channels(features) if features is not None else None for features in (source, target, att)]
    mask = dropout_mask(graph, source, dropout)
    out: Tensor = _GATv2.apply(graph, *padded, slope, mask, relu)  # type: ignore[no-untyped-call]
    return out[..., : source.shape[-1]]


def gat_attention(
    graph: CSRGraph, z: Tensor, p: Tensor, q: Tensor, slope: float, dropout: float = 0.0, relu: bool = False
) -> Tensor:
    """GAT attention, Σ_u α_uv z[u] with α_uv = softmax_u LeakyReLU(p[u] + q[v]).

    Args:
        graph: the graph.
        z: projected features (nodes, heads, channels).
        p: scores of nodes as sources, (nodes, heads).
        q: scores of nodes as targets, (nodes, heads).
        slope: negative slope of the LeakyReLU.
        dropout: probability with which coefficients are dropped.
        relu: apply a ReLU to the result in the same kernel.

    Returns:
        (nodes, heads, channels).
    """
    z, p, q = promote(z, p, q)
    compile_kernels("gat", z.dtype, z.shape[-1])
    mask = dropout_mask(graph, z, dropout)
    out: Tensor = _GAT.apply(graph, pad_channels(z), p, q, slope, mask, relu)  # type: ignore[no-untyped-call]
    return out[..., : z.shape[-1]]


def weighted_sum(graph: CSRGraph, weight: Tensor, z: Tensor) -> Tensor:
    """Sparse-dense product Σ_u weight_uv z[u].

    Args:
        graph: the graph, or the sparsity pattern of a matrix.
        weight: (edges), in the order by target.
        z: (nodes, channels).

    Returns:
        (nodes, channels).
    """
    weight, z = promote(weight, z)
    compile_kernels("gcn", z.dtype, z.shape[-1])
    out: Tensor = _WeightedSum.apply(graph, weight, pad_channels(z), False)  # type: ignore[no-untyped-call]
    return out[..., : z.shape[-1]]


def permute(rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Rows in another order, ``rows[order]``.

    Args:
        rows: any tensor of at least one dimension.
        order: a permutation of its rows.
        inverse: the inverse permutation, for the backward pass.

    Returns:
        A new tensor.
    """
    permuted: Tensor = _Permutation.apply(rows, order, inverse)  # type: ignore[no-untyped-call]
    return permuted


def compile_kernels(kind: str, dtype: torch.dtype, channels: int) -> None:
    """Compile the kernels of one kind of layer, or load them from Numba's disk cache.

    Logs a message at level INFO, once per process, if this takes longer than ``COMPILE_NOTICE_SECONDS``.

    Args:
        kind: ``"gatv2"``, ``"gat"`` or ``"gcn"``.
        dtype: of the features.
        channels: per head.
    """
    _compile_kernels(kind, dtype, padded_channels(channels))


@cache
def _compile_kernels(kind: str, dtype: torch.dtype, channels: int) -> None:
    with compilation_notice():
        graph = build_graph(torch.zeros(2, 0, dtype=torch.long), nodes=2, self_loops=True)
        z, p, a = (torch.ones(s, dtype=dtype, requires_grad=True) for s in ((2, 1, channels), (2, 1), (1, channels)))
        mask = dropout_mask(graph, z, 0.0)
        with torch.enable_grad():
            out: Tensor = {
                # Without and with a separate target: their backward passes use different kernels.
                "gatv2": lambda: sum(_GATv2.apply(graph, z, t, a, 0.2, mask, False) for t in (None, z)),  # type: ignore[no-untyped-call]
                "gat": lambda: _GAT.apply(graph, z, p, p, 0.2, mask, False),  # type: ignore[no-untyped-call]
                "gcn": lambda: _WeightedSum.apply(graph, p.detach()[:, 0], z[:, 0], False),  # type: ignore[no-untyped-call]
            }[kind]()
            torch.autograd.grad(out.sum(), z)


@contextmanager
def compilation_notice() -> Iterator[None]:
    """Log a message if the block, in which kernels are compiled, takes longer than ``COMPILE_NOTICE_SECONDS``."""
    notice = threading.Timer(COMPILE_NOTICE_SECONDS, _log_compiling)
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


@cache  # once per process, for any number of kinds and widths
def _log_compiling() -> None:
    log.info("Compiling kernels for this machine; they are cached for later runs …")


def promote(*tensors: Any) -> tuple[Any, ...]:
    """Convert tensors to their common dtype, as torch's own operations do: kernels take arrays of one dtype."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    if len(dtypes) == 1:
        return tensors
    common = reduce(torch.promote_types, dtypes)
    return tuple(None if tensor is None else tensor.to(common) for tensor in tensors)


def pad_channels(features: Tensor) -> Tensor:
    """Append zero channels up to a multiple of the smallest vector width."""
    missing = padded_channels(features.shape[-1]) - features.shape[-1]
    return F.pad(features, (0, missing)) if missing else features


def dropout_mask(graph: CSRGraph, like: Tensor, dropout: float) -> Tensor:
    """Factors 1/(1−p) or 0 of the coefficients, (edges, heads); empty without dropout."""
    if not dropout:
        return like.new_empty(0)
    return F.dropout(like.new_ones(graph.edges, like.shape[1]), dropout)


class _GATv2(Function):
    @staticmethod
    def forward(
        ctx: Any,
        graph: CSRGraph,
        source: Tensor,
        target: Tensor | None,
        att: Tensor,
        slope: float,
        dropout_mask: Tensor,
        relu: bool,
    ) -> Tensor:
        s, a, mask = flat_arrays(source, att, dropout_mask)
        score_inputs = (s if target is None else flat_arrays(target)[0], a)
        output = attention_forward(gatv2.forward, graph, s, score_inputs, slope, mask, relu, head_shape(source))
        ctx.graph, ctx.slope, ctx.relu = graph, slope, relu
        out, *coefficients = (torch.from_numpy(array) for array in output)
        out = out.view(graph.targets, *source.shape[1:])
        ctx.save_for_backward(source, target, att, dropout_mask, out, *coefficients)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        source, target, att, dropout_mask, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True

            def forward(source: Tensor, target: Tensor | None, att: Tensor) -> Tensor:
                score = gatv2_scores(ctx.graph, source, source if target is None else target, att, ctx.slope)
                return softmax_sum(ctx.graph, score, source, dropout_mask, ctx.relu)

            return None, *differentiable_gradients(forward, (source, target, att), grad), None, None, None
        s, a, mask, out, alpha, weight, g = flat_arrays(source, att, dropout_mask, *saved, grad)
        t = None if target is None else flat_arrays(target)[0]
        output, shape = AttentionOutput(out, alpha, weight), head_shape(source)
        arrays = gatv2_backward(ctx.graph, s, t, a, ctx.slope, mask, output, ctx.relu, g, shape)
        pairs = zip(arrays, (source, target, att), strict=True)
        gradients = (None if array is None else torch.from_numpy(array).view(like.shape) for array, like in pairs)
        return None, *gradients, None, None, None


class _GAT(Function):
    @staticmethod
    def forward(
        ctx: Any, graph: CSRGraph, z: Tensor, p: Tensor, q: Tensor, slope: float, dropout_mask: Tensor, relu: bool
    ) -> Tensor:
        features, p_array, q_array, mask = flat_arrays(z, p, q, dropout_mask)
        output = attention_forward(gat.forward, graph, features, (p_array, q_array), slope, mask, relu, head_shape(z))
        ctx.graph, ctx.slope, ctx.relu = graph, slope, relu
        out, *coefficients = (torch.from_numpy(array) for array in output)
        out = out.view(graph.targets, *z.shape[1:])
        ctx.save_for_backward(z, p, q, dropout_mask, out, *coefficients)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        graph, relu, z = ctx.graph, ctx.relu, ctx.saved_tensors[0]
        if torch.is_grad_enabled():  # create_graph=True

            def forward(z: Tensor, p: Tensor, q: Tensor) -> Tensor:
                return softmax_sum(graph, gat_scores(graph, p, q, ctx.slope), z, ctx.saved_tensors[3], relu)

            return None, *differentiable_gradients(forward, ctx.saved_tensors[:3], grad), None, None, None
        shape = head_shape(z)
        features, p, q, mask, *output, g = flat_arrays(*ctx.saved_tensors, grad)
        arrays = gat_backward(graph, features, p, q, ctx.slope, mask, AttentionOutput(*output), relu, g, shape)
        pairs = zip(arrays, ctx.saved_tensors[:3], strict=True)
        return None, *(torch.from_numpy(array).view(like.shape) for array, like in pairs), None, None, None


class _WeightedSum(Function):
    @staticmethod
    def forward(ctx: Any, graph: CSRGraph, weight: Tensor, z: Tensor, transposed: bool) -> Tensor:
        ctx.graph, ctx.transposed = graph, transposed
        ctx.save_for_backward(weight, z if ctx.needs_input_grad[1] else None)
        if transposed:
            return spmm(graph.tptr, graph.dst, weight, graph.position, z)
        return spmm(graph.ptr, graph.src, weight, NO_POSITIONS, z)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (weight, z), transposed = ctx.saved_tensors, ctx.transposed
        dweight = dz = None
        if ctx.needs_input_grad[1]:
            dweight = _EdgeDot.apply(ctx.graph, *((z, grad) if transposed else (grad, z)))  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[2]:
            # The gradient is a product with the transposed matrix, and so is the gradient of the gradient.
            dz = _WeightedSum.apply(ctx.graph, weight, grad, not transposed)  # type: ignore[no-untyped-call]
        return None, dweight, dz, None


class _EdgeDot(Function):
    """⟨target[v], source[u]⟩ of every edge; its gradients are weighted sums, so it can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, graph: CSRGraph, target: Tensor, source: Tensor) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(target, source)
        return edge_dot(graph, target, source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        target, source = ctx.saved_tensors
        dtarget = _WeightedSum.apply(ctx.graph, grad, source, False)  # type: ignore[no-untyped-call]
        return None, dtarget, _WeightedSum.apply(ctx.graph, grad, target, True)  # type: ignore[no-untyped-call]


class _Permutation(Function):
    """Rows in another order; unlike that of indexing, its backward pass is a copy, as no row occurs twice."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.order, ctx.inverse = order, inverse
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Permutation.apply(grad, ctx.inverse, ctx.order), None, None  # type: ignore[no-untyped-call]
