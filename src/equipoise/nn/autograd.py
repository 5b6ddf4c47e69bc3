"""The kernels as differentiable functions of tensors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch_geometric.utils import softmax

from equipoise.kernels import gat, gatv2
from equipoise.kernels.csr import CSRGraph, build_graph, reachable_sources
from equipoise.kernels.simd import Blocks, padded_channels, vector_blocks
from equipoise.kernels.spmm import spmm as spmm_kernel
from equipoise.kernels.threads import node_ranges, run_kernel

log = logging.getLogger("equipoise")

Array = np.ndarray[Any, Any]
HeadShape = tuple[int, Blocks]  # number of heads, channels of each as SIMD blocks
NO_POSITIONS = np.empty(0, np.int32)  # entries are in the order by target already
COMPILE_NOTICE_SECONDS = 2.0  # loading compiled kernels from the cache takes less


class AttentionOutput(NamedTuple):
    """Arrays that an attention kernel writes, all flat.

    Attributes:
        out: (nodes, heads, channels), the weighted sums, after the ReLU if there is one.
        alpha: (edges, heads), the attention coefficients.
        weight: (edges, heads), the coefficients after dropout; the same array without dropout.
    """

    out: Array
    alpha: Array
    weight: Array


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
    source, target, att = _promote(source, target, att)
    compile_kernels("gatv2", source.dtype, source.shape[-1])
    padded = [_pad_channels(features) if features is not None else None for features in (source, target, att)]
    mask = _dropout_mask(graph, source, dropout)
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
    z, p, q = _promote(z, p, q)
    compile_kernels("gat", z.dtype, z.shape[-1])
    mask = _dropout_mask(graph, z, dropout)
    out: Tensor = _GAT.apply(graph, _pad_channels(z), p, q, slope, mask, relu)  # type: ignore[no-untyped-call]
    return out[..., : z.shape[-1]]


def weighted_sum(graph: CSRGraph, weight: Tensor, z: Tensor) -> Tensor:
    """Sparse-dense product Σ_u weight_uv z[u], differentiable in z only.

    Args:
        graph: the graph, or the sparsity pattern of a matrix.
        weight: (edges), in the order by target.
        z: (nodes, channels).

    Returns:
        (nodes, channels).
    """
    weight, z = _promote(weight, z)
    compile_kernels("gcn", z.dtype, z.shape[-1])
    out: Tensor = _WeightedSum.apply(graph, weight, _pad_channels(z), False)  # type: ignore[no-untyped-call]
    return out[..., : z.shape[-1]]


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
    notice = threading.Timer(COMPILE_NOTICE_SECONDS, _log_compiling)
    notice.daemon = True
    notice.start()
    try:
        graph = build_graph(torch.zeros(2, 0, dtype=torch.long), nodes=2, self_loops=True)
        z, p, a = (torch.ones(s, dtype=dtype, requires_grad=True) for s in ((2, 1, channels), (2, 1), (1, channels)))
        mask = _dropout_mask(graph, z, 0.0)
        with torch.enable_grad():
            out: Tensor = {
                # Without and with a separate target: their backward passes use different kernels.
                "gatv2": lambda: sum(_GATv2.apply(graph, z, t, a, 0.2, mask, False) for t in (None, z)),  # type: ignore[no-untyped-call]
                "gat": lambda: _GAT.apply(graph, z, p, p, 0.2, mask, False),  # type: ignore[no-untyped-call]
                "gcn": lambda: _WeightedSum.apply(graph, p.detach()[:, 0], z[:, 0], False),  # type: ignore[no-untyped-call]
            }[kind]()
            torch.autograd.grad(out.sum(), z)
    finally:
        notice.cancel()


@cache  # once per process, for any number of kinds and widths
def _log_compiling() -> None:
    log.info("Compiling kernels for this machine; they are cached for later runs …")


@cache
def cached_blocks(channels: int, dtype: torch.dtype) -> Blocks:
    """:func:`~equipoise.kernels.simd.vector_blocks` of a torch dtype."""
    return vector_blocks(channels, torch.empty(0, dtype=dtype).numpy().dtype)


def _promote(*tensors: Any) -> tuple[Any, ...]:
    """Convert tensors to their common dtype, as torch's own operations do: kernels take arrays of one dtype."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    if len(dtypes) == 1:
        return tensors
    common = reduce(torch.promote_types, dtypes)
    return tuple(None if tensor is None else tensor.to(common) for tensor in tensors)


def _pad_channels(features: Tensor) -> Tensor:
    """Append zero channels up to a multiple of the smallest vector width."""
    missing = padded_channels(features.shape[-1]) - features.shape[-1]
    return F.pad(features, (0, missing)) if missing else features


def _dropout_mask(graph: CSRGraph, like: Tensor, dropout: float) -> Tensor:
    """Factors 1/(1−p) or 0 of the coefficients, (edges, heads); empty without dropout."""
    if not dropout:
        return like.new_empty(0)
    return F.dropout(like.new_ones(graph.edges, like.shape[1]), dropout)


def _flat_arrays(*tensors: Tensor) -> list[Array]:
    """Contiguous flat arrays of tensors."""
    # Not reshape: it may return a view with stride 0 of an expanded tensor, and kernels ignore strides.
    return [tensor.detach().numpy().ravel() for tensor in tensors]


def _head_shape(z: Tensor) -> HeadShape:
    return z.shape[-2], cached_blocks(z.shape[-1], z.dtype)


def attention_forward(
    kernel: Any,
    graph: CSRGraph,
    z: Array,
    score_inputs: tuple[Array, Array],
    slope: float,
    dropout_mask: Array,
    relu: bool,
    shape: HeadShape,
) -> AttentionOutput:
    """Forward pass of either kind of attention.

    Args:
        kernel: ``gat.forward`` or ``gatv2.forward``.
        graph: the graph.
        z: features to sum.
        score_inputs: arrays that the scores are computed from: p and q of GAT, target and attention of GATv2.
        slope: negative slope of the LeakyReLU.
        dropout_mask: of the coefficients; empty without dropout.
        relu: apply a ReLU.
        shape: heads and channels.

    Returns:
        New arrays.
    """
    alpha, out = np.empty(graph.edges * shape[0], z.dtype), np.empty_like(z)
    weight = np.empty_like(alpha) if len(dropout_mask) else alpha
    slope = z.dtype.type(slope)
    run_kernel(
        kernel,
        graph.ptr,
        graph.src,
        graph.order,
        z,
        *score_inputs,
        slope,
        dropout_mask,
        alpha,
        weight,
        out,
        relu,
        *shape,
    )
    return AttentionOutput(out, alpha, weight)


def gatv2_backward(
    graph: CSRGraph,
    source: Array,
    target: Array | None,
    att: Array,
    slope: float,
    dropout_mask: Array,
    output: AttentionOutput,
    relu: bool,
    grad: Array,
    shape: HeadShape,
    overwrite_grad: bool = False,
) -> tuple[Array, Array | None, Array]:
    """Backward pass of GATv2 attention.

    Args:
        graph: the graph.
        source: source features.
        target: target features; None if they are the source features.
        att: the attention vector.
        slope: negative slope of the LeakyReLU.
        dropout_mask: of the coefficients; empty without dropout.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grad: gradient of ``output.out``.
        shape: heads and channels.
        overwrite_grad: allow ``grad`` to be overwritten, which saves an array.

    Returns:
        Gradients of source, target and attention. Without a target, the first is the sum over both roles and the
        second None.
    """
    out, alpha, weight = output
    dscore, slope = np.empty_like(alpha), source.dtype.type(slope)
    dout = np.empty_like(grad) if relu and not overwrite_grad else grad  # gradient before the ReLU, if there is one
    active, datt = np.empty(graph.nodes * shape[0], np.bool_), _PartialSums(graph, att)
    if target is None and graph.symmetric:
        for_scores = (source, dropout_mask, alpha, out, grad, dout, relu, dscore, active, *shape)
        run_kernel(gatv2.backward_scores, graph.ptr, graph.src, graph.order, *for_scores)
        reachable, dsource = reachable_sources(graph, active), np.empty_like(source)
        for_features = (source, att, slope, weight, dout, dscore, reachable, dsource)
        by_source = (graph.ptr, graph.src, graph.position, graph.order)
        run_kernel(datt.bind(gatv2.backward_symmetric, shape), *by_source, *for_features)
        return dsource, None, datt.total() / 2
    t = source if target is None else target
    dtarget = np.empty_like(t)
    for_targets = (source, t, att, slope, dropout_mask, alpha, out, grad, dout, relu, dscore, active, dtarget)
    run_kernel(datt.bind(gatv2.backward_targets, shape), graph.ptr, graph.src, graph.order, *for_targets)
    reachable = reachable_sources(graph, active)
    dsource = dtarget if target is None else np.zeros_like(source)
    for_sources = (source, t, att, slope, weight, dout, dscore, active, reachable, dsource, *shape)
    run_kernel(gatv2.backward_sources, graph.tptr, graph.dst, graph.position, graph.torder, *for_sources)
    return dsource, None if target is None else dtarget, datt.total()


class _PartialSums:
    """A gradient summed over all nodes: one partial sum per range, added in a fixed order for reproducibility."""

    def __init__(self, graph: CSRGraph, like: Array) -> None:
        ranges = node_ranges(graph.ptr)
        self.sums = np.zeros((len(ranges), len(like)), like.dtype)
        self.by_range = {lo: self.sums[i] for i, (lo, _) in enumerate(ranges)}

    def bind(self, kernel: Any, shape: HeadShape) -> Any:
        """The kernel with the partial sum of its range inserted before the shape."""
        return lambda lo, hi, *arguments: kernel(lo, hi, *arguments, self.by_range[lo], *shape)

    def total(self) -> Array:
        """Sum over all nodes."""
        total: Array = self.sums[0] if len(self.sums) == 1 else self.sums.sum(axis=0)
        return total


def differentiable_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> list[Tensor | None]:
    """Gradients that are themselves differentiable, for backward passes with ``create_graph=True``.

    Args:
        function: computes the output from the inputs by operations of torch that can be differentiated twice.
        inputs: its arguments.
        grad: gradient of the output.

    Returns:
        One gradient per input; None for None and for inputs that require no gradient.
    """
    # Aliases: an input may depend on another one, and its gradient must not count twice.
    aliases = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    variables = [alias for alias in aliases if alias is not None and alias.requires_grad]
    found = iter(torch.autograd.grad(function(*aliases), variables, grad, create_graph=True, allow_unused=True))
    return [next(found) if alias is not None and alias.requires_grad else None for alias in aliases]


def softmax_sum(graph: CSRGraph, score: Tensor, z: Tensor, dropout_mask: Tensor, relu: bool) -> Tensor:
    """What the attention kernels compute from scores, by operations of torch that can be differentiated twice.

    Args:
        graph: the graph.
        score: (edges, heads), in the order by target.
        z: (nodes, heads, channels).
        dropout_mask: (edges, heads); empty without dropout.
        relu: apply a ReLU.

    Returns:
        (nodes, heads, channels).
    """
    src, dst = edge_ends(graph)
    alpha: Tensor = softmax(score, dst, num_nodes=graph.nodes)
    if len(dropout_mask):
        alpha = alpha * dropout_mask
    messages = alpha[..., None] * z.index_select(0, src)
    out = z.new_zeros(graph.nodes, *z.shape[1:]).index_add(0, dst, messages)
    return out.relu() if relu else out


def gatv2_scores(graph: CSRGraph, source: Tensor, target: Tensor, att: Tensor, slope: float) -> Tensor:
    """GATv2's attention scores (edges, heads), by operations of torch."""
    src, dst = edge_ends(graph)
    return (att * F.leaky_relu(source.index_select(0, src) + target.index_select(0, dst), slope)).sum(dim=-1)


def edge_ends(graph: CSRGraph) -> tuple[Tensor, Tensor]:
    """Source and target of every edge, in the order by target."""
    degree = torch.from_numpy(graph.ptr).diff()
    return torch.from_numpy(graph.src).long(), torch.arange(graph.nodes).repeat_interleave(degree)


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
        s, a, mask = _flat_arrays(source, att, dropout_mask)
        score_inputs = (s if target is None else _flat_arrays(target)[0], a)
        output = attention_forward(gatv2.forward, graph, s, score_inputs, slope, mask, relu, _head_shape(source))
        ctx.graph, ctx.slope, ctx.relu = graph, slope, relu
        out, *coefficients = (torch.from_numpy(array) for array in output)
        out = out.view(source.shape)
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
        s, a, mask, out, alpha, weight, g = _flat_arrays(source, att, dropout_mask, *saved, grad)
        t = None if target is None else _flat_arrays(target)[0]
        output, shape = AttentionOutput(out, alpha, weight), _head_shape(source)
        arrays = gatv2_backward(ctx.graph, s, t, a, ctx.slope, mask, output, ctx.relu, g, shape)
        pairs = zip(arrays, (source, target, att), strict=True)
        gradients = (None if array is None else torch.from_numpy(array).view(like.shape) for array, like in pairs)
        return None, *gradients, None, None, None


class _GAT(Function):
    @staticmethod
    def forward(
        ctx: Any, graph: CSRGraph, z: Tensor, p: Tensor, q: Tensor, slope: float, dropout_mask: Tensor, relu: bool
    ) -> Tensor:
        features, p_array, q_array, mask = _flat_arrays(z, p, q, dropout_mask)
        output = attention_forward(gat.forward, graph, features, (p_array, q_array), slope, mask, relu, _head_shape(z))
        ctx.graph, ctx.slope, ctx.relu = graph, slope, relu
        out, *coefficients = (torch.from_numpy(array) for array in output)
        out = out.view(z.shape)
        ctx.save_for_backward(z, p, q, dropout_mask, out, *coefficients)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        graph, relu, z = ctx.graph, ctx.relu, ctx.saved_tensors[0]
        if torch.is_grad_enabled():  # create_graph=True

            def forward(z: Tensor, p: Tensor, q: Tensor) -> Tensor:
                src, dst = edge_ends(graph)
                score = F.leaky_relu(p[src] + q[dst], ctx.slope)
                return softmax_sum(graph, score, z, ctx.saved_tensors[3], relu)

            return None, *differentiable_gradients(forward, ctx.saved_tensors[:3], grad), None, None, None
        shape = _head_shape(z)
        features, p, q, mask, out, alpha, weight, g = _flat_arrays(*ctx.saved_tensors, grad)
        dscore, dz, dp, dq = np.empty_like(alpha), np.empty_like(features), np.empty_like(p), np.empty_like(q)
        dout, active = np.empty_like(g) if relu else g, np.empty(len(q), np.bool_)
        slope = features.dtype.type(ctx.slope)
        for_targets = (features, p, q, slope, mask, alpha, out, g, dout, relu, dscore, active, dq, *shape)
        run_kernel(gat.backward_targets, graph.ptr, graph.src, graph.order, *for_targets)
        for_sources = (weight, dout, dscore, active, dz, dp, *shape)
        run_kernel(gat.backward_sources, graph.tptr, graph.dst, graph.position, graph.torder, *for_sources)
        gradients = [torch.from_numpy(array).view(-1, shape[0]) for array in (dp, dq)]
        return None, torch.from_numpy(dz).view(z.shape), *gradients, None, None, None


class _WeightedSum(Function):
    @staticmethod
    def forward(ctx: Any, graph: CSRGraph, weight: Tensor, z: Tensor, transposed: bool) -> Tensor:
        ctx.graph, ctx.transposed = graph, transposed
        ctx.save_for_backward(weight)
        if transposed:
            return spmm(graph.tptr, graph.dst, weight, graph.position, z)
        return spmm(graph.ptr, graph.src, weight, NO_POSITIONS, z)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        weight, transposed = ctx.saved_tensors[0], ctx.transposed
        # The gradient is a product with the transposed matrix, and so is the gradient of the gradient.
        return None, None, _WeightedSum.apply(ctx.graph, weight, grad, not transposed), None  # type: ignore[no-untyped-call]


def spmm(ptr: Array, neighbour: Array, weight: Tensor, position: Array, z: Tensor, out: Tensor | None = None) -> Tensor:
    """Sparse matrix times dense matrix, without autograd.

    Args:
        ptr: row pointers of the matrix, or column pointers for a product with its transpose.
        neighbour: column indices, or row indices.
        weight: entries of the matrix, in the order by target.
        position: index of each entry in ``weight``; ``NO_POSITIONS`` if they are in this order.
        z: (nodes, channels), with channels a multiple of the smallest vector width.
        out: where to write the result; a new tensor by default.

    Returns:
        (nodes, channels).
    """
    w, features = _flat_arrays(weight, z)
    out = z.new_empty(len(ptr) - 1, z.shape[1]) if out is None else out
    (out_array,) = _flat_arrays(out)
    run_kernel(spmm_kernel, ptr, neighbour, position, w, features, out_array, cached_blocks(z.shape[1], z.dtype))
    return out
