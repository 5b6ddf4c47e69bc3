"""Launch of the attention kernels: allocates arrays and runs a kernel over all nodes, without autograd.

All arrays are flat. Numbers of rows are those of the graph; callers check them before, as kernels do not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from equipoise.kernels import edge_attention, gat, gatv2
from equipoise.kernels.csr import CSRGraph, reachable_sources
from equipoise.kernels.edge_attention import Coefficients, GATInputs, GATv2Inputs
from equipoise.kernels.simd import num_blocks
from equipoise.kernels.threads import node_ranges, run_kernel
from equipoise.nn.kernel_arrays import Array, HeadShape


class AttentionOutput(NamedTuple):
    """Arrays that an attention kernel writes, all flat.

    Attributes:
        out: (targets, heads, channels), the weighted sums, after the ReLU if there is one.
        alpha: (edges, heads), the attention coefficients.
        weight: (edges, heads), the coefficients after dropout; the same array without dropout.
    """

    out: Array
    alpha: Array
    weight: Array


def empty_output(graph: CSRGraph, dropout_mask: Array, shape: HeadShape) -> AttentionOutput:
    """Uninitialised arrays for an attention kernel to write, of the dtype of the mask."""
    H, C, dtype = shape[0], num_blocks(shape[1]) * len(shape[1][0]), dropout_mask.dtype
    alpha, out = np.empty(graph.edges * H, dtype), np.empty(graph.targets * H * C, dtype)
    return AttentionOutput(out, alpha, np.empty_like(alpha) if len(dropout_mask) else alpha)


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
    output = empty_output(graph, dropout_mask, shape)
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
        output.alpha,
        output.weight,
        output.out,
        relu,
        *shape,
    )
    return output


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

    Returns:
        Gradients of source, target and attention. Without a target, the first is the sum over both roles and the
        second None.
    """
    out, alpha, weight = output
    dscore, slope = np.empty_like(alpha), source.dtype.type(slope)
    dout = np.empty_like(grad) if relu else grad  # gradient before the ReLU, if there is one
    active, datt = np.empty(graph.targets * shape[0], np.bool_), PartialSums(graph, att)
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


class PartialSums:
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


def gat_backward(
    graph: CSRGraph,
    z: Array,
    p: Array,
    q: Array,
    slope: float,
    dropout_mask: Array,
    output: AttentionOutput,
    relu: bool,
    grad: Array,
    shape: HeadShape,
) -> tuple[Array, Array, Array]:
    """Backward pass of GAT attention.

    Args:
        graph: the graph.
        z: features.
        p: scores of nodes as sources.
        q: scores of nodes as targets.
        slope: negative slope of the LeakyReLU.
        dropout_mask: of the coefficients; empty without dropout.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grad: gradient of ``output.out``.
        shape: heads and channels.

    Returns:
        Gradients of z, p and q.
    """
    out, alpha, weight = output
    dscore, dz, dp, dq = np.empty_like(alpha), np.empty_like(z), np.empty_like(p), np.empty_like(q)
    dout, active = np.empty_like(grad) if relu else grad, np.empty(len(q), np.bool_)
    slope = z.dtype.type(slope)
    for_targets = (z, p, q, slope, dropout_mask, alpha, out, grad, dout, relu, dscore, active, dq, *shape)
    run_kernel(gat.backward_targets, graph.ptr, graph.src, graph.order, *for_targets)
    for_sources = (weight, dout, dscore, active, dz, dp, *shape)
    run_kernel(gat.backward_sources, graph.tptr, graph.dst, graph.position, graph.torder, *for_sources)
    return dz, dp, dq


def edge_attention_forward(
    kernel: Any, graph: CSRGraph, inputs: tuple[Any, ...], dropout_mask: Array, relu: bool, shape: HeadShape
) -> AttentionOutput:
    """Forward pass of either kind of attention with edge features.

    Args:
        kernel: ``gatv2_forward`` or ``gat_forward`` of :mod:`equipoise.kernels.edge_attention`.
        graph: the graph.
        inputs: the kernel's: ``GATv2Inputs``, or z and ``GATInputs``.
        dropout_mask: of the coefficients; empty without dropout.
        relu: apply a ReLU.
        shape: heads and channels.

    Returns:
        New arrays.
    """
    output = empty_output(graph, dropout_mask, shape)
    coefficients = Coefficients(output.alpha, output.weight, dropout_mask)
    run_kernel(kernel, graph.ptr, graph.src, graph.order, *inputs, coefficients, output.out, relu, *shape)
    return output


class OutputGradients(NamedTuple):
    """Gradients of the output of attention.

    Attributes:
        out: of the weighted sums.
        weight: of the coefficients after dropout; None without.
    """

    out: Array
    weight: Array | None


def _score_gradients(
    graph: CSRGraph,
    z: Array,
    dropout_mask: Array,
    output: AttentionOutput,
    relu: bool,
    grads: OutputGradients,
    shape: HeadShape,
) -> tuple[Array, Array, Array]:
    """Gradients of the scores and of the sums before the ReLU, and which targets are active."""
    out, alpha, weight = output
    dscore, active = np.empty_like(alpha), np.empty(graph.targets * shape[0], np.bool_)
    dout = np.empty_like(grads.out) if relu else grads.out
    arguments = (z, dropout_mask, alpha, out, grads.out, dout, relu, dscore, active, *shape)
    run_kernel(gatv2.backward_scores, graph.ptr, graph.src, graph.order, *arguments)
    if grads.weight is not None:
        coefficients = Coefficients(alpha, weight, dropout_mask)
        for_coefficients = (coefficients, grads.weight, dscore, active, shape[0])
        run_kernel(edge_attention.add_coefficient_gradients, graph.ptr, graph.order, *for_coefficients)
    return dscore, dout, active


def edge_gatv2_backward(
    graph: CSRGraph,
    inputs: GATv2Inputs,
    dropout_mask: Array,
    output: AttentionOutput,
    relu: bool,
    grads: OutputGradients,
    shape: HeadShape,
) -> tuple[Array, Array, Array, Array]:
    """Backward pass of GATv2 attention with edge features or with a gradient of the coefficients.

    Args:
        graph: the graph.
        inputs: of the forward pass.
        dropout_mask: of the coefficients; empty without dropout.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grads: gradients of the output.
        shape: heads and channels.

    Returns:
        Gradients of source, target, edge (empty without edge features) and attention.
    """
    dscore, dout, active = _score_gradients(graph, inputs.source, dropout_mask, output, relu, grads, shape)
    dtarget, dedge, datt = np.empty_like(inputs.target), np.empty_like(inputs.edge), PartialSums(graph, inputs.att)
    for_targets = (graph.ptr, graph.src, graph.order, inputs, dscore, active, dtarget, dedge)
    run_kernel(datt.bind(edge_attention.gatv2_backward_targets, shape), *for_targets)
    by_source = (graph.tptr, graph.dst, graph.position, graph.torder)
    if len(dedge):
        dsource = np.empty_like(inputs.source)
        for_sources = (output.weight, dout, dedge, active, dsource, *shape)
        run_kernel(edge_attention.gatv2_backward_sources, *by_source, *for_sources)
    else:
        dsource, reachable = np.zeros_like(inputs.source), reachable_sources(graph, active)
        scores = (inputs.source, inputs.target, inputs.att, inputs.slope, output.weight, dout, dscore)
        run_kernel(gatv2.backward_sources, *by_source, *scores, active, reachable, dsource, *shape)
    return dsource, dtarget, dedge, datt.total()


def edge_gat_backward(
    graph: CSRGraph,
    z: Array,
    inputs: GATInputs,
    dropout_mask: Array,
    output: AttentionOutput,
    relu: bool,
    grads: OutputGradients,
    shape: HeadShape,
) -> tuple[Array, Array, Array, Array]:
    """Backward pass of GAT attention with edge features or with a gradient of the coefficients.

    Args:
        graph: the graph.
        z: features.
        inputs: of the forward pass.
        dropout_mask: of the coefficients; empty without dropout.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grads: gradients of the output.
        shape: heads and channels.

    Returns:
        Gradients of z, p, q and, per edge, of p[u] + q[v] + edge[k].
    """
    dscore, dout, active = _score_gradients(graph, z, dropout_mask, output, relu, grads, shape)
    dz, dp, dq = np.empty_like(z), np.empty_like(inputs.p), np.empty_like(inputs.q)
    for_targets = (graph.ptr, graph.src, graph.order, inputs, dscore, dq, shape[0])
    run_kernel(edge_attention.gat_backward_targets, *for_targets)
    for_sources = (output.weight, dout, dscore, active, dz, dp, *shape)
    run_kernel(gat.backward_sources, graph.tptr, graph.dst, graph.position, graph.torder, *for_sources)
    return dz, dp, dq, dscore
