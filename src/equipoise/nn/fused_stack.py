"""A stack of GATv2 layers with ReLUs as a single autograd function.

Kernels and matrix products are those of the single layers, in the same order, so the numbers are the same. But no
autograd nodes, module calls or cache lookups run between layers, the ReLU is part of the kernel before it, and the
backward pass reuses three arrays for all layers. On a small graph this takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch_geometric.nn.dense.linear import Linear

from equipoise.kernels import gatv2
from equipoise.kernels.csr import CSRGraph
from equipoise.kernels.simd import padded_channels
from equipoise.nn.autograd import compile_attention_kernels
from equipoise.nn.dispatch import GRAPH_CACHE, fallback_reason
from equipoise.nn.fused_convs import FusedGATv2Conv, can_fuse_relu
from equipoise.nn.hooks import AttentionCoefficients, has_hooks, observers_of
from equipoise.nn.kernel_arrays import Array, HeadShape, cached_blocks
from equipoise.nn.launch import AttentionOutput, attention_forward, gatv2_backward
from equipoise.nn.second_order import differentiable_gradients, gatv2_scores, softmax_and_sum
from equipoise.nn.sparse_linear import FeatureMatrix

NO_DROPOUT = {np.dtype(kind): np.empty(0, kind) for kind in (np.float32, np.float64)}
MAX_SAVED_BYTES = 2**24  # larger products x Wᵀ are recomputed in the backward pass, cheap compared with its edges

# Called with the layer's index, its input (None for the stack's own), its output and its coefficients.
LayerCallback = Callable[[int, Tensor | None, Tensor, Tensor], None]


def can_fuse(convs: Sequence[Any], activation: nn.Module, x: Any, edge_index: Any) -> bool:
    """Whether a stack consists only of matrix products, GATv2 attention and ReLUs, and nothing intercepts its calls."""
    return (
        isinstance(activation, nn.ReLU)
        and not torch.compiler.is_compiling()  # which fuses the layers' operators with what is between them
        and all(_is_fusable(conv) and conv.add_self_loops == convs[0].add_self_loops for conv in convs)
        and all(padded_channels(conv.out_channels) == conv.out_channels for conv in convs[:-1])
        and convs[-1].heads == 1
        and not has_hooks(activation)
        and not fallback_reason(convs[0], x, edge_index)
    )


def _is_fusable(conv: Any) -> bool:
    if type(conv) is not FusedGATv2Conv:
        return False
    lin = conv._modules["lin_l"]  # conv.lin_l without nn.Module.__getattr__: this runs for every layer in every pass
    return (
        type(lin) is Linear
        and conv.share_weights
        and lin._parameters["bias"] is None
        and can_fuse_relu(conv)
        and not (conv.training and conv.dropout)
        and not has_hooks(conv, lin)
    )


def fused_forward(convs: Sequence[Any], x: Tensor, edge_index: Tensor) -> Tensor:
    """Run layers with a ReLU between them as one autograd function, and call their observer hooks.

    Args:
        convs: layers for which :func:`can_fuse` holds.
        x: node features, dense or sparse.
        edge_index: the graph.

    Returns:
        Output of the last layer.
    """
    graph = GRAPH_CACHE.get(edge_index, x.shape[0], convs[0].add_self_loops)
    for conv in convs:
        compile_attention_kernels("gatv2", x.dtype, conv.out_channels)
    features = FeatureMatrix(x)
    weights = [weight for conv in convs for weight in (conv.lin_l.weight, conv.att)]
    slopes = [conv.negative_slope for conv in convs]
    observers = [observers_of(conv) for conv in convs]

    def call_observers(layer: int, layer_input: Tensor | None, output: Tensor, alpha: Tensor) -> None:
        conv = convs[layer]
        inputs = (x if layer_input is None else layer_input, edge_index)
        attention = AttentionCoefficients(graph, alpha.view(-1, conv.heads))
        for observer in observers[layer]:
            observer(conv, inputs, {"attention": attention}, output[:, : conv.heads * conv.out_channels])

    callback, dense = call_observers if any(observers) else None, x if features.dense else None
    out: Tensor = _FusedStack.apply(graph, features, slopes, callback, dense, *weights)  # type: ignore[no-untyped-call]
    # The backward pass of a slice copies its gradient, even if the slice is the whole tensor.
    return out if out.shape[1] == convs[-1].out_channels else out[:, : convs[-1].out_channels]


class _FusedStack(Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes arguments by position)
        ctx: Any,
        graph: CSRGraph,
        features: FeatureMatrix,
        slopes: list[float],
        callback: LayerCallback | None,
        x: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        h: Tensor | None = None
        saved: list[Tensor | None] = []
        last = len(slopes) - 1
        for layer, slope in enumerate(slopes):
            W, att, shape = _padded_parameters(weights[2 * layer], weights[2 * layer + 1])
            product = features.product(W) if h is None else torch.mm(h, W.t())
            z = product.numpy().ravel()
            relu, no_mask = layer < last, NO_DROPOUT[z.dtype]
            output = attention_forward(gatv2.forward, graph, z, (z, att), slope, no_mask, relu, shape)
            layer_input, h = h, torch.from_numpy(output.out).view(graph.targets, -1)
            alpha = torch.from_numpy(output.alpha)
            saved += (product if z.nbytes <= MAX_SAVED_BYTES else None, h, alpha)
            if callback is not None:
                callback(layer, layer_input, h, alpha)
        ctx.graph, ctx.features, ctx.slopes = graph, features, slopes
        # Saving the features lets autograd notice that they were modified in place before the backward pass.
        ctx.save_for_backward(features.values if x is None else x, *weights, *saved)
        return h  # type: ignore[return-value]  # a stack has at least one layer

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        graph, features, depth = ctx.graph, ctx.features, len(ctx.slopes)
        x, *tensors = ctx.saved_tensors
        weights, saved = tensors[: 2 * depth], tensors[2 * depth :]
        if torch.is_grad_enabled():  # create_graph=True
            forward = partial(_differentiable_forward, graph, features, ctx.slopes)
            inputs = (x if features.dense else None, *weights)
            return None, None, None, None, *differentiable_gradients(forward, inputs, grad)
        gradients: list[Tensor] = []
        for layer in reversed(range(depth)):
            W, att, shape = _padded_parameters(weights[2 * layer], weights[2 * layer + 1])
            product, out, alpha = saved[3 * layer : 3 * layer + 3]
            h = saved[3 * layer - 2] if layer else None  # this layer's input is the previous layer's output
            if product is None:
                product = features.product(W) if h is None else torch.mm(h, W.t())
            z, out_array, alpha_array = product.numpy().ravel(), out.numpy().ravel(), alpha.numpy()
            output = AttentionOutput(out_array, alpha_array, alpha_array)
            # Gradients of hidden layers are allocated below and may be overwritten; the last one belongs to autograd.
            hidden = layer < depth - 1
            dz, _, datt = gatv2_backward(
                graph,
                z,
                None,
                att,
                ctx.slopes[layer],
                NO_DROPOUT[z.dtype],
                output,
                hidden,
                grad.numpy().ravel(),
                shape,
                overwrite_grad=hidden,
            )
            del product, z  # may be the largest arrays
            dproduct = torch.from_numpy(dz).view(graph.targets, -1)
            dW = features.weight_gradient(dproduct) if h is None else torch.mm(dproduct.t(), h)
            channels = weights[2 * layer + 1].shape[-1]
            gradients += [torch.from_numpy(datt).view(1, shape[0], -1)[..., :channels], dW[: len(weights[2 * layer])]]
            if layer or ctx.needs_input_grad[4]:
                reuse = hidden and grad.shape == (graph.targets, W.shape[1])
                grad = torch.mm(dproduct, W, out=grad) if reuse else torch.mm(dproduct, W)
            del dz, dproduct  # free them before the next layer allocates its own
        dx = grad if ctx.needs_input_grad[4] else None
        return None, None, None, None, dx, *reversed(gradients)


def _differentiable_forward(
    graph: CSRGraph, features: FeatureMatrix, slopes: Sequence[float], x: Tensor | None, *weights: Tensor
) -> Tensor:
    """The stack by operations of torch that can be differentiated twice, padded as the kernels' output is."""
    none = weights[0].new_empty(0)
    h = x
    for layer, slope in enumerate(slopes):
        W, att = weights[2 * layer], weights[2 * layer + 1]
        h = features.linear(W) if h is None else h @ W.t()
        z = h.view(graph.targets, *att.shape[1:])
        last = layer == len(slopes) - 1
        score = gatv2_scores(graph, z, z, att[0], slope)
        h = softmax_and_sum(graph, score, z, none, relu=not last)[0].flatten(1)
    assert h is not None
    return F.pad(h, (0, padded_channels(h.shape[1]) - h.shape[1]))


def _padded_parameters(W: Tensor, att: Tensor) -> tuple[Tensor, Array, HeadShape]:
    """Matrix, attention vector and head shape of a layer, with zeros appended up to a whole SIMD vector."""
    heads, channels = att.shape[1:]
    W, a, missing = W.detach(), att.numpy(force=True).ravel(), padded_channels(channels) - channels
    if missing:  # only in the last layer, which has one head
        W, a = F.pad(W, (0, 0, 0, missing)), np.pad(a, (0, missing))
    return W, a, (heads, cached_blocks(channels + missing, W.dtype))
