"""The attention kernels as functions of tensors, and their autograd functions."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from equipoise.kernels import edge_attention, gat, gatv2
from equipoise.kernels.csr import CSRGraph, build_graph
from equipoise.kernels.edge_attention import GATInputs, GATv2Inputs
from equipoise.kernels.jit import compilation_notice
from equipoise.kernels.simd import padded_channels
from equipoise.nn.kernel_arrays import Array, flat_arrays, head_shape
from equipoise.nn.launch import (
    AttentionOutput,
    OutputGradients,
    attention_forward,
    edge_attention_forward,
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
    s, a, mask = flat_arrays(source, att, options.dropout_mask)
    t, shape = s if target is None else flat_arrays(target)[0], head_shape(source)
    if edge is None:
        output = attention_forward(gatv2.forward, graph, s, (t, a), options.slope, mask, options.relu, shape)
    else:
        inputs = GATv2Inputs(s, t, flat_arrays(edge)[0], a, s.dtype.type(options.slope))
        output = edge_attention_forward(edge_attention.gatv2_forward, graph, (inputs,), mask, options.relu, shape)
    return _output_tensors(output, graph, source)


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
    source, target, edge, att = inputs
    slope, relu = options.slope, options.relu
    s, a, mask, *arrays = flat_arrays(source, att, options.dropout_mask, *result)
    output, shape = AttentionOutput(*arrays), head_shape(source)
    grads = _output_gradients(grad, dweight, output.out)
    t = None if target is None else flat_arrays(target)[0]
    gradients: tuple[Array | None, ...]
    if edge is None and dweight is None:
        ds, dt, da = gatv2_backward(graph, s, t, a, slope, mask, output, relu, grads.out, shape)
        gradients = (ds, dt, None, da)
    else:
        e = np.empty(0, s.dtype) if edge is None else flat_arrays(edge)[0]
        kernel_inputs = GATv2Inputs(s, s if t is None else t, e, a, s.dtype.type(slope))
        ds, dt, de, da = edge_gatv2_backward(graph, kernel_inputs, mask, output, relu, grads, shape)
        gradients = (ds + dt, None, de, da) if t is None else (ds, dt, de, da)
    return _gradient_tensors(gradients, inputs)


def gat_forward(
    graph: CSRGraph, z: Tensor, p: Tensor, q: Tensor, edge: Tensor | None, options: AttentionOptions
) -> AttentionTensors:
    """Forward pass of GAT attention, without autograd; channels are padded."""
    features, p_array, q_array, mask = flat_arrays(z, p, q, options.dropout_mask)
    slope, relu, shape = options.slope, options.relu, head_shape(z)
    if edge is None:
        output = attention_forward(gat.forward, graph, features, (p_array, q_array), slope, mask, relu, shape)
    else:
        inputs = GATInputs(p_array, q_array, flat_arrays(edge)[0], features.dtype.type(slope))
        output = edge_attention_forward(edge_attention.gat_forward, graph, (features, inputs), mask, relu, shape)
    return _output_tensors(output, graph, z)


def gat_gradients(
    graph: CSRGraph,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
    options: AttentionOptions,
    result: AttentionTensors,
    grad: Tensor | None,
    dweight: Tensor | None = None,
) -> OptionalTensors:
    """Backward pass of GAT attention, without autograd; as :func:`gatv2_gradients` for the inputs z, p, q and edge."""
    z, p, q, edge = inputs
    slope, relu = options.slope, options.relu
    features, p_array, q_array, mask, *arrays = flat_arrays(z, p, q, options.dropout_mask, *result)
    output, shape = AttentionOutput(*arrays), head_shape(z)
    grads = _output_gradients(grad, dweight, output.out)
    gradients: tuple[Array | None, ...]
    if edge is None and dweight is None:
        pair = (p_array, q_array)
        gradients = (*gat_backward(graph, features, *pair, slope, mask, output, relu, grads.out, shape), None)
    else:
        e = np.empty(0, features.dtype) if edge is None else flat_arrays(edge)[0]
        kernel_inputs = GATInputs(p_array, q_array, e, features.dtype.type(slope))
        gradients = edge_gat_backward(graph, features, kernel_inputs, mask, output, relu, grads, shape)
    return _gradient_tensors(gradients, inputs)


def _output_tensors(output: AttentionOutput, graph: CSRGraph, z: Tensor) -> AttentionTensors:
    out = torch.from_numpy(output.out).view(graph.targets, *z.shape[1:])
    alpha = torch.from_numpy(output.alpha).view(graph.edges, z.shape[1])
    weight = alpha if output.weight is output.alpha else torch.from_numpy(output.weight).view(alpha.shape)
    return AttentionTensors(out, alpha, weight)


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
