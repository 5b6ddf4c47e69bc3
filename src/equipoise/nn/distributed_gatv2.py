"""GATv2 with shared weights on a distributed graph: product, exchange and attention as one autograd function.

Kernels are those of :mod:`equipoise.kernels.gatv2`. Inner nodes are computed while boundary rows arrive, and gradients
of own nodes while those of the halo are returned. Of a large product x Wᵀ, only the rows of the halo are saved for the
backward pass; those of own nodes are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch_geometric.nn.dense.linear import Linear

from equipoise.distributed.graph import DistributedGraph
from equipoise.distributed.overlap import Overlap
from equipoise.kernels import gatv2
from equipoise.kernels.arguments import Coefficients, GATv2Inputs, HeadShape, Output, ScoreGradients
from equipoise.kernels.csr import mark_reachable
from equipoise.kernels.simd import padded_channels
from equipoise.kernels.threads import Range, run_ranges
from equipoise.nn.autograd import compile_attention_kernels
from equipoise.nn.dense_product import multiply_task, weight_gradient_task
from equipoise.nn.hooks import has_hooks
from equipoise.nn.kernel_arrays import Array, cached_blocks, flat_arrays, pad_channels
from equipoise.nn.second_order import differentiable_gradients, gatv2_scores, softmax_and_sum
from equipoise.nn.sparse_linear import FeatureMatrix
from equipoise.nn.stack_plan import MAX_SAVED_BYTES


def can_overlap(conv: Any) -> bool:
    """Whether a GATv2 layer is a product without bias and attention with one matrix, and nothing intercepts them."""
    lin = conv.lin_l
    return (
        conv.share_weights
        and type(lin) is Linear
        and lin.in_channels > 0
        and lin.bias is None
        and not has_hooks(lin)
        and not (conv.training and conv.dropout)
        and conv.att.dtype == lin.weight.dtype
    )


def overlapped_gatv2(conv: Any, x: Tensor, graph: DistributedGraph, relu: bool) -> Tensor:
    """Attention of a layer for which :func:`can_overlap` holds.

    Args:
        conv: the layer.
        x: features of own nodes, dense or sparse.
        graph: the distributed graph.
        relu: apply a ReLU.

    Returns:
        (own nodes, heads, channels).
    """
    H, C = conv.heads, conv.out_channels
    compile_attention_kernels("gatv2", x.dtype, C)
    missing = padded_channels(C) - C
    weight, att = conv.lin_l.weight, pad_channels(conv.att[0])
    if missing:
        weight = F.pad(weight.view(H, C, -1), (0, 0, 0, missing)).flatten(0, 1)
    features, self_loops = FeatureMatrix(x), conv.add_self_loops
    # Dense features are not part of the call: autograd frees what it has saved, but not the call.
    sparse = None if features.dense else features
    call = _Call(graph, graph.overlap(self_loops), sparse, self_loops, conv.negative_slope, relu, H)
    out: Tensor = _OverlappedGATv2.apply(call, x if features.dense else None, weight, att)  # type: ignore[no-untyped-call]
    return out[..., :C] if missing else out


class _Call(NamedTuple):
    """What a pass depends on besides tensors that may require gradients."""

    graph: DistributedGraph
    overlap: Overlap
    sparse: FeatureMatrix | None
    self_loops: bool
    slope: float
    relu: bool
    heads: int

    def shape(self, weight: Tensor) -> HeadShape:
        """Heads and channels as SIMD blocks."""
        return HeadShape(self.heads, cached_blocks(weight.shape[0] // self.heads, weight.dtype))

    def inputs(self, source: Tensor, att: Tensor) -> GATv2Inputs:
        """Inputs of the kernels; own nodes come first in the source, so it is the target too."""
        s, a = flat_arrays(source, att)
        return GATv2Inputs(s, s, np.empty(0, s.dtype), a, s.dtype.type(self.slope))

    def project(self, x: Tensor | None, weight: Tensor) -> Tensor:
        """x Wᵀ of own nodes in an array that has room for the halo; a large one is valid until the next call."""
        shape, buffers = (self.overlap.num_sources, weight.shape[0]), self.graph.buffers
        large = math.prod(shape) * weight.element_size() > MAX_SAVED_BYTES
        source = buffers.scratch("source", shape, weight.dtype) if large else buffers.empty(shape, weight.dtype)
        features = self.sparse if x is None else FeatureMatrix(x)
        assert features is not None  # they are dense or sparse
        features.product(weight.detach(), out=source[: self.overlap.num_own])
        return source


class _OverlappedGATv2(Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, x: Tensor | None, weight: Tensor, att: Tensor) -> Tensor:
        overlap, shape = call.overlap, call.shape(weight)
        own, source = overlap.num_own, call.project(x, weight)
        pending = call.graph.exchange.start_forward(source[:own], source[own:])
        inputs = call.inputs(source, att)
        alpha = call.graph.buffers.empty(((overlap.num_edges + 1) * call.heads,), weight.dtype)
        alpha[-call.heads :] = 0  # of the reverse of edges from the halo
        out, a = call.graph.buffers.empty((own, *att.shape), weight.dtype), alpha.numpy()
        results = (Coefficients(a, a, inputs.edge), out.numpy().ravel(), call.relu, shape)
        run_ranges(gatv2.forward, overlap.inner, overlap.by_target, inputs, *results)
        pending.wait()
        run_ranges(gatv2.forward, overlap.boundary, overlap.by_target, inputs, *results)
        large = source.numel() * source.element_size() > MAX_SAVED_BYTES
        kept = source
        if large:
            kept = call.graph.buffers.empty((overlap.num_sources - own, weight.shape[0]), weight.dtype)
            kept.copy_(source[own:])
        ctx.call = call
        ctx.save_for_backward(x, weight, att, kept, out, alpha)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        call, (x, weight, att, kept, out, alpha) = ctx.call, ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            return None, *differentiable_gradients(_differentiable(call), (x, weight, att), grad)
        dz, datt, nonzero = _attention_gradients(call, (x, weight, att, kept, out, alpha), grad)
        dx = None
        if ctx.needs_input_grad[1]:
            dx = call.graph.buffers.empty((len(dz), weight.shape[1]), dz.dtype)
            multiply_task(dz, weight, dx, nonzero)()
        dweight = call.sparse.weight_gradient(dz) if call.sparse else weight_gradient_task(dz, x.detach(), nonzero)()
        return None, dx, dweight, datt


def _attention_gradients(  # a function of its own, so that its arrays are freed before the products of the caller
    call: _Call, saved: tuple[Any, ...], grad: Tensor
) -> tuple[Tensor, Tensor, Array]:
    """Gradients of the product x Wᵀ of own nodes, summed over ranks, and of this rank's attention vector.

    Returns:
        Both gradients, and which rows of the first may be nonzero.
    """
    x, weight, att, kept, *output = saved
    overlap, exchange, own = call.overlap, call.graph.exchange, call.overlap.num_own
    source = kept
    if len(kept) != overlap.num_sources:
        source = call.project(x, weight)
        source[own:] = kept
    dsource, inputs = call.graph.buffers.scratch("dsource", source.shape, source.dtype), call.inputs(source, att)
    ds, g, out, alpha = flat_arrays(dsource, grad, *output)
    gradients = _Gradients(call, inputs, alpha, Output(out, g, g, call.relu), ds, shape=call.shape(weight))
    for_sources = gradients.begin_symmetric() if overlap.symmetric else gradients.begin()
    for_sources(overlap.halo)
    pending = exchange.start_backward(dsource[own:])
    for_sources(overlap.own)
    nonzero = gradients.reachable[:own]
    nonzero[exchange.rows.numpy()] = True
    return exchange.add_(dsource[:own], pending.wait()), torch.from_numpy(gradients.datt()).view_as(att), nonzero


class _Gradients:
    """The kernels of one backward pass: those that compute gradients of scores first, then those for ranges of sources.

    Args:
        call: the pass.
        inputs: of the forward pass.
        alpha: coefficients of the forward pass, followed by zeros, one per head.
        output: of the forward pass, and its gradient.
        dsource: where the gradient of all sources is written.
        shape: heads and channels.

    Attributes:
        reachable: which sources receive a gradient on this rank.
    """

    def __init__(
        self, call: _Call, inputs: GATv2Inputs, alpha: Array, output: Output, dsource: Array, *, shape: HeadShape
    ) -> None:
        self.overlap, self.heads, self.shape, self.inputs = call.overlap, call.heads, shape, inputs
        self.buffers = call.graph.buffers
        self.alpha, self.output, self.dsource = alpha, output, dsource
        self.reachable = np.empty(self.overlap.num_sources, np.bool_)
        self._datt: dict[int, Array] = {}  # one sum per range, added in order for reproducibility

    def begin(self) -> Callable[[list[Range]], None]:
        """Two visits of each edge: gradients of scores and targets here, of sources by the function returned."""
        overlap, dout = (
            self.overlap,
            self._scratch("dout", len(self.output.grad)) if self.output.relu else self.output.grad,
        )
        coefficients, output = self._coefficients(), self.output._replace(dout=dout)
        scores = self._scores(overlap.num_edges)
        self.dsource[overlap.num_own * (len(self.dsource) // max(overlap.num_sources, 1)) :] = 0
        arguments = (overlap.by_target, self.inputs, coefficients, output, scores, self.dsource)
        self._run_summed(gatv2.backward_targets, [*overlap.inner, *overlap.boundary], *arguments)
        self._mark_reachable(scores)
        for_sources = (overlap.by_source, self.inputs, self.alpha, dout, scores, self.reachable, self.dsource)
        return lambda ranges: run_ranges(gatv2.backward_sources, ranges, *for_sources, self.shape)

    def begin_symmetric(self) -> Callable[[list[Range]], None]:
        """One visit of each edge between own nodes: gradients of scores here, of features by the function returned."""
        overlap, size = self.overlap, len(self.output.grad)
        dout = self._scratch("dout", len(self.dsource))
        dout[size:] = 0  # of the halo, times a coefficient of zero
        if not self.output.relu:
            dout[:size] = self.output.grad
        scores = self._scores(int(overlap.by_source.ptr[-1]) + 1)
        scores.dscore[overlap.num_edges * self.heads :] = 0
        output = self.output._replace(dout=dout)
        arguments = (overlap.by_target, self.inputs.source, self._coefficients(), output, scores, self.shape)
        run_ranges(gatv2.backward_scores, [*overlap.inner, *overlap.boundary], *arguments)
        self._mark_reachable(scores)
        for_sources = (overlap.by_source, self.inputs, self.alpha, dout, scores.dscore, self.reachable, self.dsource)
        return lambda ranges: self._run_summed(gatv2.backward_symmetric, ranges, *for_sources)

    def datt(self) -> Array:
        """Gradient of the attention vector, after all ranges."""
        total: Array = sum((self._datt[lo] for lo in sorted(self._datt)), np.zeros_like(self.inputs.att))
        return total / 2 if self.overlap.symmetric else total  # every gradient of a score counts at both ends

    def _run_summed(self, kernel: Any, ranges: list[Range], *arguments: Any) -> None:
        self._datt |= {lo: np.zeros_like(self.inputs.att) for lo, _ in ranges}
        run_ranges(lambda lo, hi: kernel(lo, hi, *arguments, self._datt[lo], self.shape), ranges)

    def _mark_reachable(self, scores: ScoreGradients) -> None:
        own, edges = self.overlap.num_own, self.overlap.by_target
        mark_reachable(edges.ptr, edges.neighbour, scores.active, self.reachable)
        self.reachable[:own] |= scores.active.reshape(own, self.heads).any(axis=1)

    def _coefficients(self) -> Coefficients:
        return Coefficients(self.alpha, self.alpha, self.inputs.edge)

    def _scores(self, edges: int) -> ScoreGradients:
        active = np.empty(self.overlap.num_own * self.heads, np.bool_)
        return ScoreGradients(self._scratch("dscore", edges * self.heads), active)

    def _scratch(self, name: str, size: int) -> Array:
        return self.buffers.scratch(name, (size,), torch.from_numpy(self.alpha).dtype).numpy()


def _differentiable(call: _Call) -> Callable[..., Tensor]:
    """The same function by operations of torch that can be differentiated twice."""
    csr = call.graph.csr(call.self_loops)

    def forward(x: Tensor | None, weight: Tensor, att: Tensor) -> Tensor:
        z = (call.sparse.linear(weight) if call.sparse else cast(Tensor, x) @ weight.t()).view(-1, *att.shape)
        source = call.graph.append_halo(z)
        score = gatv2_scores(csr, source, z, att, call.slope)
        return softmax_and_sum(csr, score, source, z.new_empty(0), call.relu)[0]

    return forward
