"""The attention kernels as differentiable functions of tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from equipoise.errors import GraphError
from equipoise.kernels import edge_attention, gat, gatv2
from equipoise.kernels.csr import CSRGraph, build_graph
from equipoise.kernels.edge_attention import GATInputs, GATv2Inputs
from equipoise.kernels.jit import compilation_notice
from equipoise.kernels.simd import padded_channels
from equipoise.nn.kernel_arrays import Array, flat_arrays, head_shape, pad_channels, promote
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


def gatv2_attention(
    graph: CSRGraph,
    source: Tensor,
    target: Tensor | None,
    att: Tensor,
    slope: float,
    dropout: float = 0.0,
    relu: bool = False,
    *,
    edge: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GATv2 attention, Σ_k α_k source[u] with α = softmax a · LeakyReLU(source[u] + target[v] + edge[k]).

    Args:
        graph: the graph.
        source: projected source features (sources, heads, channels).
        target: projected target features (targets, heads, channels); None if they are the source features.
        att: the attention vector a, (heads, channels).
        slope: negative slope of the LeakyReLU.
        dropout: probability with which coefficients are dropped.
        relu: apply a ReLU to the sums in the same kernel.
        edge: projected edge features (edges, heads, channels), in the order by target; None without.

    Returns:
        The sums (targets, heads, channels), and the coefficients after dropout (edges, heads) in the order by target.

    Raises:
        GraphError: ``edge`` does not have one row of heads and channels per edge.
    """
    source, target, att, edge = promote(source, target, att, edge)
    _check_rows_of_edges(graph, edge, source.shape[1:])
    compile_attention_kernels("gatv2", source.dtype, source.shape[-1], edge is not None)
    padded = [features if features is None else pad_channels(features) for features in (source, target, edge, att)]
    mask = dropout_mask(graph, source, dropout)
    out, weight = _GATv2.apply(graph, *padded, slope, mask, relu)  # type: ignore[no-untyped-call]
    return out[..., : source.shape[-1]], weight


def gat_attention(
    graph: CSRGraph,
    z: Tensor,
    p: Tensor,
    q: Tensor,
    slope: float,
    dropout: float = 0.0,
    relu: bool = False,
    *,
    edge: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GAT attention, Σ_k α_k z[u] with α = softmax LeakyReLU(p[u] + q[v] + edge[k]).

    Args:
        graph: the graph.
        z: projected source features (sources, heads, channels).
        p: scores of sources, (sources, heads).
        q: scores of targets, (targets, heads).
        slope: negative slope of the LeakyReLU.
        dropout: probability with which coefficients are dropped.
        relu: apply a ReLU to the sums in the same kernel.
        edge: scores of edges (edges, heads), in the order by target; None without.

    Returns:
        The sums (targets, heads, channels), and the coefficients after dropout (edges, heads) in the order by target.

    Raises:
        GraphError: ``edge`` does not have one row of heads per edge.
    """
    z, p, q, edge = promote(z, p, q, edge)
    _check_rows_of_edges(graph, edge, p.shape[1:])
    compile_attention_kernels("gat", z.dtype, z.shape[-1], edge is not None)
    mask = dropout_mask(graph, z, dropout)
    out, weight = _GAT.apply(graph, pad_channels(z), p, q, edge, slope, mask, relu)  # type: ignore[no-untyped-call]
    return out[..., : z.shape[-1]], weight


def _check_rows_of_edges(graph: CSRGraph, edge: Tensor | None, row: tuple[int, ...]) -> None:
    """Check the shape of edge features: kernels read them without bounds checks, and any module may compute them."""
    if edge is not None and edge.shape != (graph.edges, *row):
        raise GraphError(
            f"projected edge features have shape {tuple(edge.shape)}, expected {(graph.edges, *row)}",
            remedy="a hook of lin_edge, or a module that replaces it, must keep the shape of its output",
        )


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
    with compilation_notice(), torch.enable_grad():
        graph = build_graph(torch.zeros(2, 0, dtype=torch.long), nodes=2, self_loops=True)
        shapes = ((2, 1, channels), (2, 1), (1, channels))
        z, p, a = (torch.ones(shape, dtype=dtype, requires_grad=True) for shape in shapes)
        mask = dropout_mask(graph, z, 0.0)
        if kind == "gat":
            out, _ = _GAT.apply(graph, z, p, p, p if edge_features else None, 0.2, mask, False)  # type: ignore[no-untyped-call]
            out.sum().backward()
            return
        edge = z if edge_features else None
        for target in (None, z):  # their backward passes use different kernels
            out, _ = _GATv2.apply(graph, z, target, edge, a, 0.2, mask, False)  # type: ignore[no-untyped-call]
            out.sum().backward()


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
        edge: Tensor | None,
        att: Tensor,
        slope: float,
        dropout_mask: Tensor,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        s, a, mask = flat_arrays(source, att, dropout_mask)
        t, shape = s if target is None else flat_arrays(target)[0], head_shape(source)
        if edge is None:
            output = attention_forward(gatv2.forward, graph, s, (t, a), slope, mask, relu, shape)
        else:
            inputs = GATv2Inputs(s, t, flat_arrays(edge)[0], a, s.dtype.type(slope))
            output = edge_attention_forward(edge_attention.gatv2_forward, graph, (inputs,), mask, relu, shape)
        ctx.graph, ctx.slope, ctx.relu = graph, slope, relu
        ctx.set_materialize_grads(False)
        out, alpha, weight = _output_tensors(output, graph, source)
        ctx.save_for_backward(source, target, edge, att, dropout_mask, out, alpha, weight)
        return out, weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, dweight: Tensor | None) -> tuple[Any, ...]:
        source, target, edge, att, dropout_mask, *saved = ctx.saved_tensors
        graph, slope, relu = ctx.graph, ctx.slope, ctx.relu
        inputs = (source, target, edge, att)
        if torch.is_grad_enabled():  # create_graph=True

            def forward(
                source: Tensor, target: Tensor | None, edge: Tensor | None, att: Tensor
            ) -> tuple[Tensor, Tensor]:
                t = source if target is None else target
                score = gatv2_scores(graph, source, t, att, slope, edge=edge)
                return softmax_and_sum(graph, score, source, dropout_mask, relu)

            return None, *differentiable_gradients(forward, inputs, grad, dweight), None, None, None
        s, a, mask, *arrays = flat_arrays(source, att, dropout_mask, *saved)
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
        return None, *_gradient_tensors(gradients, inputs), None, None, None


class _GAT(Function):
    @staticmethod
    def forward(
        ctx: Any,
        graph: CSRGraph,
        z: Tensor,
        p: Tensor,
        q: Tensor,
        edge: Tensor | None,
        slope: float,
        dropout_mask: Tensor,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        features, p_array, q_array, mask = flat_arrays(z, p, q, dropout_mask)
        shape = head_shape(z)
        if edge is None:
            output = attention_forward(gat.forward, graph, features, (p_array, q_array), slope, mask, relu, shape)
        else:
            inputs = GATInputs(p_array, q_array, flat_arrays(edge)[0], features.dtype.type(slope))
            output = edge_attention_forward(edge_attention.gat_forward, graph, (features, inputs), mask, relu, shape)
        ctx.graph, ctx.slope, ctx.relu = graph, slope, relu
        ctx.set_materialize_grads(False)
        out, alpha, weight = _output_tensors(output, graph, z)
        ctx.save_for_backward(z, p, q, edge, dropout_mask, out, alpha, weight)
        return out, weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, dweight: Tensor | None) -> tuple[Any, ...]:
        z, p, q, edge, dropout_mask, *saved = ctx.saved_tensors
        graph, slope, relu = ctx.graph, ctx.slope, ctx.relu
        inputs = (z, p, q, edge)
        if torch.is_grad_enabled():  # create_graph=True

            def forward(z: Tensor, p: Tensor, q: Tensor, edge: Tensor | None) -> tuple[Tensor, Tensor]:
                score = gat_scores(graph, p, q, slope, edge=edge)
                return softmax_and_sum(graph, score, z, dropout_mask, relu)

            return None, *differentiable_gradients(forward, inputs, grad, dweight), None, None, None
        features, p_array, q_array, mask, *arrays = flat_arrays(z, p, q, dropout_mask, *saved)
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
        return None, *_gradient_tensors(gradients, inputs), None, None, None


def _output_tensors(output: AttentionOutput, graph: CSRGraph, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums, coefficients and coefficients after dropout as tensors; the last two are one without dropout."""
    out = torch.from_numpy(output.out).view(graph.targets, *z.shape[1:])
    alpha = torch.from_numpy(output.alpha).view(graph.edges, z.shape[1])
    weight = alpha if output.weight is output.alpha else torch.from_numpy(output.weight).view(alpha.shape)
    return out, alpha, weight


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
