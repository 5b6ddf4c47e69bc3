"""Launch of the attention kernels for edge features and for gradients of the coefficients, without autograd."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from equipoise.kernels import edge_attention, gat, gatv2
from equipoise.kernels.csr import CSRGraph, reachable_sources
from equipoise.kernels.edge_attention import Coefficients, GATInputs, GATv2Inputs
from equipoise.kernels.threads import run_kernel
from equipoise.nn.launch import Array, AttentionOutput, HeadShape, PartialSums, empty_output


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
