"""The attention kernels as functions of tensors, and their autograd functions."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from equipoise.kernels import edge_attention, gat, gatv2
from equipoise.kernels.arguments import Coefficients, GATInputs, GATv2Inputs
from equipoise.kernels.csr import CSRGraph, build_graph
from equipoise.kernels.jit import compilation_notice
from equipoise.kernels.simd import padded_channels
from equipoise.nn.kernel_arrays import Array, flat_arrays, head_shape
from equipoise.nn.launch import (
    AttentionOutput,
    OutputGradients,
    attention_forward,
    edge_gat_backward,
    edge_gatv2_backward,
    gat_backward,
    gatv2_backward,
)
from equipoise.nn.second_order import differentiable_gradients, gat_scores, gatv2_scores, softmax_and_sum

OptionalTensors = tuple[Tensor | None, ...]


class AttentionOptions(NamedTuple):
    """What attention depends on besides features and parameters.

    Attributes:
        slope: negative slope of the LeakyReLU.
        dropout_mask: factors 1/(1−p) or 0 of the coefficients, (edges, heads); empty without dropout.
        relu: apply a ReLU to the sums.
    """

    slope: float
    dropout_mask: Tensor
    relu: bool


class AttentionTensors(NamedTuple):
    """Result of attention.

    Attributes:
        out: weighted sums (targets, heads, channels).
        alpha: coefficients (edges, heads), in the order by target.
        weight: coefficients after dropout; the same tensor without dropout.
    """

    out: Tensor
    alpha: Tensor
    weight: Tensor


def gatv2_forward(
    graph: CSRGraph,
    source: Tensor,
    target: Tensor | None,
    edge: Tensor | None,
    att: Tensor,
    options: AttentionOptions,
) -> AttentionTensors:
    """Forward pass of GATv2 attention, without autograd; channels are padded."""
    (mask,), inputs = flat_arrays(options.dropout_mask), _gatv2_inputs(source, target, edge, att, options.slope)
    kernel = gatv2.forward if edge is None else edge_attention.gatv2_forward
    output = attention_forward(kernel, graph, inputs, mask, options.relu, head_shape(source))
    return _output_tensors(output, graph, source)


def _gatv2_inputs(source: Tensor, target: Tensor | None, edge: Tensor | None, att: Tensor, slope: float) -> GATv2Inputs:
    """Arrays of the kernels; source and target are one array if the target is None."""
    s, a = flat_arrays(source, att)
    t = s if target is None else flat_arrays(target)[0]
    return GATv2Inputs(s, t, _edge_array(edge, s), a, s.dtype.type(slope))


def _edge_array(edge: Tensor | None, like: Array) -> Array:
    return np.empty(0, like.dtype) if edge is None else flat_arrays(edge)[0]


def gatv2_gradients(
    graph: CSRGraph,
    inputs: tuple[Tensor, Tensor | None, Tensor | None, Tensor],
    options: AttentionOptions,
    result: AttentionTensors,
    grad: Tensor | None,
    dweight: Tensor | None = None,
) -> OptionalTensors:
    """Backward pass of GATv2 attention, without autograd.

    Args:
        graph: the graph.
        inputs: source, target, edge and att of the forward pass.
        options: of the forward pass.
        result: of the forward pass.
        grad: gradient of the sums; None for zeros.
        dweight: gradient of the coefficients after dropout; None for zeros.

    Returns:
        Gradients of the inputs; None for inputs that are None.
    """
    source, target, edge, _ = inputs
    kernel_inputs, shape = _gatv2_inputs(*inputs, options.slope), head_shape(source)
    output = _output_arrays(result, options)
    grads = _output_gradients(grad, dweight, output.out)
    gradients: tuple[Array | None, ...]
    if edge is None and dweight is None:
        ds, dt, da = gatv2_backward(graph, kernel_inputs, output, options.relu, grads.out, shape)
        gradients = (ds, dt, None, da)
    else:
        ds, dt, de, da = edge_gatv2_backward(graph, kernel_inputs, output, options.relu, grads, shape)
        gradients = (ds + dt, None, de, da) if target is None else (ds, dt, de, da)
    return _gradient_tensors(gradients, inputs)


def gat_forward(
    graph: CSRGraph, z: Tensor, p: Tensor, q: Tensor, edge: Tensor | None, options: AttentionOptions
) -> AttentionTensors:
    """Forward pass of GAT attention, without autograd; channels are padded."""
    (mask,), inputs = flat_arrays(options.dropout_mask), _gat_inputs(z, p, q, edge, options.slope)
    kernel = gat.forward if edge is None else edge_attention.gat_forward
    output = attention_forward(kernel, graph, inputs, mask, options.relu, head_shape(z))
    return _output_tensors(output, graph, z)


def _gat_inputs(z: Tensor, p: Tensor, q: Tensor, edge: Tensor | None, slope: float) -> GATInputs:
    features, p_array, q_array = flat_arrays(z, p, q)
    return GATInputs(features, p_array, q_array, _edge_array(edge, features), features.dtype.type(slope))


def gat_gradients(
    graph: CSRGraph,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
    options: AttentionOptions,
    result: AttentionTensors,
    grad: Tensor | None,
    dweight: Tensor | None = None,
) -> OptionalTensors:
    """Backward pass of GAT attention, without autograd; as :func:`gatv2_gradients` for the inputs z, p, q and edge."""
    z, _, _, edge = inputs
    kernel_inputs, shape = _gat_inputs(*inputs, options.slope), head_shape(z)
    output = _output_arrays(result, options)
    grads = _output_gradients(grad, dweight, output.out)
    gradients: tuple[Array | None, ...]
    if edge is None and dweight is None:
        gradients = (*gat_backward(graph, kernel_inputs, output, options.relu, grads.out, shape), None)
    else:
        gradients = edge_gat_backward(graph, kernel_inputs, output, options.relu, grads, shape)
    return _gradient_tensors(gradients, inputs)


def _output_tensors(output: AttentionOutput, graph: CSRGraph, z: Tensor) -> AttentionTensors:
    out, (alpha_array, weight_array, _) = output
    alpha = torch.from_numpy(alpha_array).view(graph.edges, z.shape[1])
    weight = alpha if weight_array is alpha_array else torch.from_numpy(weight_array).view(alpha.shape)
    return AttentionTensors(torch.from_numpy(out).view(graph.targets, *z.shape[1:]), alpha, weight)


def _output_arrays(result: AttentionTensors, options: AttentionOptions) -> AttentionOutput:
    out, alpha, weight, mask = flat_arrays(*result, options.dropout_mask)
    return AttentionOutput(out, Coefficients(alpha, weight, mask))


def _output_gradients(grad: Tensor | None, dweight: Tensor | None, out: Array) -> OutputGradients:
    return OutputGradients(
        np.zeros_like(out) if grad is None else flat_arrays(grad)[0],
        None if dweight is None else flat_arrays(dweight)[0],
    )


def _gradient_tensors(arrays: tuple[Array | None, ...], inputs: OptionalTensors) -> OptionalTensors:
    """Gradients in the shapes of the inputs; None for inputs that are None."""
    return tuple(
        None if array is None or like is None else torch.from_numpy(array).view(like.shape)
        for array, like in zip(arrays, inputs, strict=True)
    )


class GATv2Function(Function):
    """GATv2 attention: sums, and coefficients after dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        graph: CSRGraph,
        source: Tensor,
        target: Tensor | None,
        edge: Tensor | None,
        att: Tensor,
        options: AttentionOptions,
    ) -> tuple[Tensor, Tensor]:
        result = gatv2_forward(graph, source, target, edge, att, options)
        ctx.graph, ctx.slope, ctx.relu = graph, options.slope, options.relu
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(source, target, edge, att, options.dropout_mask, *result)
        return result.out, result.weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, dweight: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: torch.utils.checkpoint recomputes them
        graph, (*inputs, mask), result = ctx.graph, saved[:5], AttentionTensors(*saved[5:])
        options = AttentionOptions(ctx.slope, mask, ctx.relu)
        if not torch.is_grad_enabled():
            return None, *gatv2_gradients(graph, tuple(inputs), options, result, grad, dweight), None

        def forward(source: Tensor, target: Tensor | None, edge: Tensor | None, att: Tensor) -> tuple[Tensor, Tensor]:
            t = source if target is None else target
            score = gatv2_scores(graph, source, t, att, options.slope, edge=edge)
            return softmax_and_sum(graph, score, source, options.dropout_mask, options.relu)

        return None, *differentiable_gradients(forward, inputs, grad, dweight), None


class GATFunction(Function):
    """GAT attention: sums, and coefficients after dropout."""

    @staticmethod
    def forward(
        ctx: Any, graph: CSRGraph, z: Tensor, p: Tensor, q: Tensor, edge: Tensor | None, options: AttentionOptions
    ) -> tuple[Tensor, Tensor]:
        result = gat_forward(graph, z, p, q, edge, options)
        ctx.graph, ctx.slope, ctx.relu = graph, options.slope, options.relu
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(z, p, q, edge, options.dropout_mask, *result)
        return result.out, result.weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, dweight: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: torch.utils.checkpoint recomputes them
        graph, (*inputs, mask), result = ctx.graph, saved[:5], AttentionTensors(*saved[5:])
        options = AttentionOptions(ctx.slope, mask, ctx.relu)
        if not torch.is_grad_enabled():
            return None, *gat_gradients(graph, tuple(inputs), options, result, grad, dweight), None

        def forward(z: Tensor, p: Tensor, q: Tensor, edge: Tensor | None) -> tuple[Tensor, Tensor]:
            score = gat_scores(graph, p, q, options.slope, edge=edge)
            return softmax_and_sum(graph, score, z, options.dropout_mask, options.relu)

        return None, *differentiable_gradients(forward, inputs, grad, dweight), None


def compile_attention_kernels(kind: str, dtype: torch.dtype, channels: int, edge_features: bool = False) -> None:
    """Compile the kernels of one kind of attention, or load them from Numba's disk cache.

    Args:
        kind: ``"gatv2"`` or ``"gat"``.
        dtype: of the features.
        channels: per head.
        edge_features: whether there are edge features.
    """
    _compile_attention_kernels(kind, dtype, padded_channels(channels), edge_features)


@cache
def _compile_attention_kernels(kind: str, dtype: torch.dtype, channels: int, edge_features: bool) -> None:
    with compilation_notice():
        graph = build_graph(torch.zeros(2, 0, dtype=torch.long), nodes=2, self_loops=True)
        z, p, a = (torch.ones(shape, dtype=dtype) for shape in ((2, 1, channels), (2, 1), (1, channels)))
        options = AttentionOptions(0.2, z.new_empty(0), False)
        dweight = p if edge_features else None
        if kind == "gat":
            gat_inputs = (z, p, p, p if edge_features else None)
            gat_gradients(graph, gat_inputs, options, gat_forward(graph, *gat_inputs, options), z, dweight)
            return
        for target in (None, z):  # their backward passes use different kernels
            inputs = (z, target, z if edge_features else None, a)
            gatv2_gradients(graph, inputs, options, gatv2_forward(graph, *inputs, options), z, dweight)
