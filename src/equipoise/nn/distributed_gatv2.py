"""GATv2 with shared weights on a distributed graph: product, exchange and attention as one autograd function.

Kernels are those of :mod:`equipoise.nn.launch`. Inner nodes are computed while boundary rows arrive, and gradients of
own nodes while those of the halo are returned. Of a large product x Wᵀ, only the rows of the halo are saved for the
backward pass; those of own nodes are computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch_geometric.nn.dense.linear import Linear

from equipoise.distributed.graph import DistributedGraph
from equipoise.distributed.overlap import Overlap, plan_overlap
from equipoise.kernels import gatv2
from equipoise.kernels.arguments import Coefficients, GATv2Inputs, HeadShape, Output, ScoreGradients
from equipoise.kernels.csr import CSRGraph, reachable_sources
from equipoise.kernels.simd import padded_channels
from equipoise.kernels.threads import run_kernel, run_ranges
from equipoise.nn.autograd import compile_attention_kernels
from equipoise.nn.hooks import has_hooks
from equipoise.nn.kernel_arrays import cached_blocks, flat_arrays, pad_channels
from equipoise.nn.launch import PartialSums
from equipoise.nn.second_order import differentiable_gradients, gatv2_scores, softmax_and_sum
from equipoise.nn.sparse_linear import FeatureMatrix
from equipoise.nn.workspace import MAX_SAVED_BYTES


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
    H, C, csr = conv.heads, conv.out_channels, graph.csr(conv.add_self_loops)
    compile_attention_kernels("gatv2", x.dtype, C)
    missing = padded_channels(C) - C
    weight, att = conv.lin_l.weight, pad_channels(conv.att[0])
    if missing:
        weight = F.pad(weight.view(H, C, -1), (0, 0, 0, missing)).flatten(0, 1)
    overlap = graph.cached(("overlap", conv.add_self_loops), lambda: plan_overlap(csr))
    call = _Call(graph, csr, overlap, FeatureMatrix(x), conv.negative_slope, relu, H)
    out: Tensor = _OverlappedGATv2.apply(call, x if call.features.dense else None, weight, att)  # type: ignore[no-untyped-call]
    return out[..., :C]


class _Call(NamedTuple):
    """What a pass depends on besides tensors that may require gradients."""

    graph: DistributedGraph
    csr: CSRGraph
    overlap: Overlap
    features: FeatureMatrix
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

    def project(self, weight: Tensor) -> Tensor:
        """x Wᵀ of own nodes in an array that has room for the halo."""
        source = weight.new_empty(self.csr.sources, weight.shape[0])
        self.features.product(weight.detach(), out=source[: self.csr.targets])
        return source


class _OverlappedGATv2(Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, x: Tensor | None, weight: Tensor, att: Tensor) -> Tensor:
        csr, exchange, shape = call.csr, call.graph.exchange, call.shape(weight)
        source = call.project(weight)
        pending = exchange.start_forward(source[: csr.targets], source[csr.targets :])
        inputs = call.inputs(source, att)
        alpha = np.empty(csr.edges * call.heads, inputs.source.dtype)
        out = source.new_empty(csr.targets, *att.shape)
        results = (Coefficients(alpha, alpha, inputs.edge), out.numpy().ravel(), call.relu, shape)
        run_ranges(gatv2.forward, call.overlap.inner, csr.by_target, inputs, *results)
        pending.wait()
        run_ranges(gatv2.forward, call.overlap.boundary, csr.by_target, inputs, *results)
        large = source.numel() * source.element_size() > MAX_SAVED_BYTES
        kept = source[csr.targets :].clone() if large else source
        ctx.call = call
        ctx.save_for_backward(x, weight, att, kept, out, torch.from_numpy(alpha))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        call, (x, weight, att, kept, out, alpha) = ctx.call, ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            return None, *differentiable_gradients(_differentiable(call), (x, weight, att), grad)
        dz, datt = _attention_gradients(call, (weight, att, kept, out, alpha), grad)
        dx = dz @ weight if ctx.needs_input_grad[1] else None
        return None, dx, call.features.weight_gradient(dz), datt


def _attention_gradients(  # a function of its own, so that its arrays are freed before the products of the caller
    call: _Call, saved: tuple[Tensor, ...], grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the product x Wᵀ of own nodes, summed over ranks, and of this rank's attention vector."""
    weight, att, kept, *output = saved
    csr, exchange, shape, own = call.csr, call.graph.exchange, call.shape(weight), call.csr.targets
    source = kept
    if len(kept) != csr.sources:
        source = call.project(weight)
        source[own:] = kept
    dsource = torch.empty_like(source)
    dsource[own:] = 0
    inputs = call.inputs(source, att)
    ds, g, out, alpha = flat_arrays(dsource, grad, *output)
    coefficients, datt = Coefficients(alpha, alpha, inputs.edge), PartialSums(csr, inputs.att)
    sums = Output(out, g, np.empty_like(g) if call.relu else g, call.relu)
    scores = ScoreGradients(np.empty_like(alpha), np.empty(own * call.heads, np.bool_))
    for_targets = (inputs, coefficients, sums, scores, ds, shape)
    run_kernel(datt.bind(gatv2.backward_targets), csr.by_target, *for_targets)
    by_source = csr.by_source._replace(order=call.overlap.source_order)
    for_sources = (inputs, alpha, sums.dout, scores, reachable_sources(csr, scores.active), ds, shape)
    run_ranges(gatv2.backward_sources, call.overlap.halo, by_source, *for_sources)
    pending = exchange.start_backward(dsource[own:])
    run_ranges(gatv2.backward_sources, call.overlap.own, by_source, *for_sources)
    return exchange.add_(dsource[:own], pending.wait()), torch.from_numpy(datt.total()).view_as(att)


def _differentiable(call: _Call) -> Callable[..., Tensor]:
    """The same function by operations of torch that can be differentiated twice."""

    def forward(x: Tensor | None, weight: Tensor, att: Tensor) -> Tensor:
        z = (call.features.linear(weight) if x is None else x @ weight.t()).view(-1, *att.shape)
        source = call.graph.append_halo(z)
        score = gatv2_scores(call.csr, source, z, att, call.slope)
        return softmax_and_sum(call.csr, score, source, z.new_empty(0), call.relu)[0]

    return forward
