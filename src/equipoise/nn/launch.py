"""Launch of the attention kernels: allocates arrays and runs a kernel over all nodes, without autograd.

All arrays are flat. Numbers of rows are those of the graph; callers check them before, as kernels do not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from equipoise.kernels import edge_attention, gat, gatv2
from equipoise.kernels.arguments import Coefficients, GATInputs, GATv2Inputs, HeadShape, Output, ScoreGradients
from equipoise.kernels.csr import CSRGraph, mark_reachable, reachable_sources
from equipoise.kernels.simd import num_blocks
from equipoise.kernels.threads import node_ranges, run_kernel
from equipoise.nn.kernel_arrays import Array


class AttentionOutput(NamedTuple):
    """Arrays that an attention kernel writes, all flat.

    Attributes:
        out: (targets, heads, channels), the weighted sums, after the ReLU if there is one.
        coefficients: (edges, heads), the attention coefficients.
    """

    out: Array
    coefficients: Coefficients


class OutputGradients(NamedTuple):
    """Gradients of the output of attention.

    Attributes:
        out: of the weighted sums.
        weight: of the coefficients after dropout; None without.
    """

    out: Array
    weight: Array | None


def attention_forward(
    kernel: Any, graph: CSRGraph, inputs: Any, dropout_mask: Array, relu: bool, shape: HeadShape
) -> AttentionOutput:
    """Forward pass of any kind of attention.

    Args:
        kernel: ``forward`` of :mod:`~equipoise.kernels.gat`, :mod:`~equipoise.kernels.gatv2`,
            :mod:`~equipoise.kernels.transformer` or, with edge features, of :mod:`~equipoise.kernels.edge_attention`.
        graph: the graph.
        inputs: the kernel's inputs.
        dropout_mask: of the coefficients, in the dtype of the features; empty without dropout.
        relu: apply a ReLU.
        shape: heads and channels.

    Returns:
        New arrays.
    """
    H, C, dtype = shape.heads, num_blocks(shape.blocks) * len(shape.blocks[0]), dropout_mask.dtype
    alpha, out = np.empty(graph.edges * H, dtype), np.empty(graph.targets * H * C, dtype)
    coefficients = Coefficients(alpha, np.empty_like(alpha) if len(dropout_mask) else alpha, dropout_mask)
    run_kernel(kernel, graph.by_target, inputs, coefficients, out, relu, shape)
    return AttentionOutput(out, coefficients)


class GATv2Gradients(NamedTuple):
    """Arrays that the backward pass of GATv2 attention writes.

    Attributes:
        output: the weighted sums and their gradient.
        scores: gradients of the scores.
        reachable: (sources), which sources receive a gradient.
        dsource: gradient of the source features; also of the target features if both are the same.
        dtarget: gradient of the target features; the same array if both are the same.
        datt: gradient of the attention vector, one partial sum per range of nodes.
    """

    output: Output
    scores: ScoreGradients
    reachable: Array
    dsource: Array
    dtarget: Array
    datt: PartialSums


class KernelCall(NamedTuple):
    """A kernel and its arguments after ``lo`` and ``hi``; the first are the edges.

    Attributes:
        kernel: the kernel.
        arguments: those shared by all ranges of nodes.
        sums: accumulates a sum over all nodes; the kernel gets the partial sum of its range before the last argument.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    sums: PartialSums | None = None

    def run(self) -> None:
        """Run the kernel over all nodes."""
        run_kernel(self.kernel if self.sums is None else self.sums.bind(self.kernel), *self.arguments)


def gatv2_backward_calls(
    graph: CSRGraph, inputs: GATv2Inputs, coefficients: Coefficients, gradients: GATv2Gradients, shape: HeadShape
) -> tuple[KernelCall, KernelCall]:
    """The two kernels of the backward pass of GATv2 attention; :func:`mark_reachable` runs between them.

    If source and target are the same features of a symmetric graph, the second kernel visits each edge once instead of
    twice. The sums of attention gradients are then twice the gradient.

    Args:
        graph: the graph.
        inputs: of the forward pass.
        coefficients: of the forward pass.
        gradients: the arrays to write.
        shape: heads and channels.

    Returns:
        The kernel calls.
    """
    output, scores, reachable, dsource, dtarget, datt = gradients
    by_target, by_source, weight = graph.by_target, graph.by_source, coefficients.weight
    if dsource is dtarget and graph.symmetric:
        for_scores = (by_target, inputs.source, coefficients, output, scores, shape)
        for_features = (by_source, inputs, weight, output.dout, scores.dscore, reachable, dsource, shape)
        return KernelCall(gatv2.backward_scores, for_scores), KernelCall(gatv2.backward_symmetric, for_features, datt)
    for_targets = (by_target, inputs, coefficients, output, scores, dtarget, shape)
    for_sources = (by_source, inputs, weight, output.dout, scores, reachable, dsource, shape)
    return KernelCall(gatv2.backward_targets, for_targets, datt), KernelCall(gatv2.backward_sources, for_sources)


def gatv2_backward(
    graph: CSRGraph,
    inputs: GATv2Inputs,
    output: AttentionOutput,
    relu: bool,
    grad: Array,
    shape: HeadShape,
) -> tuple[Array, Array | None, Array]:
    """Backward pass of GATv2 attention.

    Args:
        graph: the graph.
        inputs: of the forward pass.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grad: gradient of ``output.out``.
        shape: heads and channels.

    Returns:
        Gradients of source, target and attention. If source and target are one array, the first is the sum over both
        roles and the second None.
    """
    source, shared = inputs.source, inputs.source is inputs.target
    dtarget = np.empty_like(inputs.target)
    gradients = GATv2Gradients(
        _output(output, relu, grad),
        _empty_scores(graph, output, shape),
        np.empty(graph.sources, np.bool_),
        dtarget if shared else np.zeros_like(source),
        dtarget,
        PartialSums(graph, inputs.att),
    )
    first, second = gatv2_backward_calls(graph, inputs, output.coefficients, gradients, shape)
    first.run()
    mark_reachable(graph.ptr, graph.src, gradients.scores.active, gradients.reachable)
    second.run()
    datt = gradients.datt.total()
    return gradients.dsource, None if shared else dtarget, datt / 2 if shared and graph.symmetric else datt


class PartialSums:
    """A gradient summed over all nodes: one partial sum per range, added in a fixed order for reproducibility.

    Args:
        graph: the graph.
        like: an array of the shape and dtype of the sum.
        sums: where to accumulate, one row per range; new and zero by default.
    """

    def __init__(self, graph: CSRGraph, like: Array, sums: Array | None = None) -> None:
        ranges = node_ranges(graph.ptr)
        self.sums = np.zeros((len(ranges), len(like)), like.dtype) if sums is None else sums
        self.by_range = {lo: self.sums[i] for i, (lo, _) in enumerate(ranges)}

    def bind(self, kernel: Any) -> Any:
        """The kernel with the partial sum of its range inserted before the shape, its last argument."""
        return lambda lo, hi, *arguments: kernel(lo, hi, *self.insert(lo, arguments))

    def insert(self, lo: int, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with the partial sum of the range that starts at ``lo``."""
        return *arguments[:-1], self.by_range[lo], arguments[-1]

    def total(self) -> Array:
        """Sum over all nodes."""
        total: Array = self.sums[0] if len(self.sums) == 1 else self.sums.sum(axis=0)
        return total


def gat_backward(
    graph: CSRGraph, inputs: GATInputs, output: AttentionOutput, relu: bool, grad: Array, shape: HeadShape
) -> tuple[Array, Array, Array]:
    """Backward pass of GAT attention.

    Args:
        graph: the graph.
        inputs: of the forward pass.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grad: gradient of ``output.out``.
        shape: heads and channels.

    Returns:
        Gradients of z, p and q.
    """
    dz, dp, dq = np.empty_like(inputs.z), np.empty_like(inputs.p), np.empty_like(inputs.q)
    sums, scores = _output(output, relu, grad), _empty_scores(graph, output, shape)
    run_kernel(gat.backward_targets, graph.by_target, inputs, output.coefficients, sums, scores, dq, shape)
    weight = output.coefficients.weight
    run_kernel(gat.backward_sources, graph.by_source, weight, sums.dout, scores, dz, dp, shape)
    return dz, dp, dq


def _output(output: AttentionOutput, relu: bool, grad: Array) -> Output:
    return Output(output.out, grad, np.empty_like(grad) if relu else grad, relu)


def _empty_scores(graph: CSRGraph, output: AttentionOutput, shape: HeadShape) -> ScoreGradients:
    return ScoreGradients(np.empty_like(output.coefficients.alpha), np.empty(graph.targets * shape.heads, np.bool_))


def score_gradients(
    graph: CSRGraph, z: Array, output: AttentionOutput, relu: bool, grads: OutputGradients, shape: HeadShape
) -> tuple[ScoreGradients, Array]:
    """Gradients of the scores, zero at inactive nodes: the first step where coefficients have a gradient themselves.

    Args:
        graph: the graph.
        z: the summed features.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grads: gradients of the output.
        shape: heads and channels.

    Returns:
        Gradients of the scores, and of the sums before the ReLU.
    """
    sums, scores = _output(output, relu, grads.out), _empty_scores(graph, output, shape)
    run_kernel(gatv2.backward_scores, graph.by_target, z, output.coefficients, sums, scores, shape)
    if grads.weight is not None:
        add = edge_attention.add_coefficient_gradients
        run_kernel(add, graph.by_target, output.coefficients, grads.weight, scores, shape)
    return scores, sums.dout


def edge_gatv2_backward(
    graph: CSRGraph,
    inputs: GATv2Inputs,
    output: AttentionOutput,
    relu: bool,
    grads: OutputGradients,
    shape: HeadShape,
) -> tuple[Array, Array, Array, Array]:
    """Backward pass of GATv2 attention with edge features or with a gradient of the coefficients.

    Args:
        graph: the graph.
        inputs: of the forward pass.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grads: gradients of the output.
        shape: heads and channels.

    Returns:
        Gradients of source, target, edge (empty without edge features) and attention.
    """
    scores, dout = score_gradients(graph, inputs.source, output, relu, grads, shape)
    dtarget, dedge, datt = np.empty_like(inputs.target), np.empty_like(inputs.edge), PartialSums(graph, inputs.att)
    kernel = datt.bind(edge_attention.gatv2_backward_targets)
    run_kernel(kernel, graph.by_target, inputs, scores, dtarget, dedge, shape)
    weight = output.coefficients.weight
    if len(dedge):
        dsource = np.empty_like(inputs.source)
        kernel = edge_attention.gatv2_backward_sources
        run_kernel(kernel, graph.by_source, weight, dout, dedge, scores.active, dsource, shape)
    else:
        dsource, reachable = np.zeros_like(inputs.source), reachable_sources(graph, scores.active)
        kernel = gatv2.backward_sources
        run_kernel(kernel, graph.by_source, inputs, weight, dout, scores, reachable, dsource, shape)
    return dsource, dtarget, dedge, datt.total()


def edge_gat_backward(
    graph: CSRGraph,
    inputs: GATInputs,
    output: AttentionOutput,
    relu: bool,
    grads: OutputGradients,
    shape: HeadShape,
) -> tuple[Array, Array, Array, Array]:
    """Backward pass of GAT attention with edge features or with a gradient of the coefficients.

    Args:
        graph: the graph.
        inputs: of the forward pass.
        output: of the forward pass.
        relu: whether the forward pass applied a ReLU.
        grads: gradients of the output.
        shape: heads and channels.

    Returns:
        Gradients of z, p, q and, per edge, of p[u] + q[v] + edge[k].
    """
    scores, dout = score_gradients(graph, inputs.z, output, relu, grads, shape)
    dz, dp, dq = np.empty_like(inputs.z), np.empty_like(inputs.p), np.empty_like(inputs.q)
    run_kernel(edge_attention.gat_backward_targets, graph.by_target, inputs, scores.dscore, dq, shape)
    weight = output.coefficients.weight
    run_kernel(gat.backward_sources, graph.by_source, weight, dout, scores, dz, dp, shape)
    return dz, dp, dq, scores.dscore
