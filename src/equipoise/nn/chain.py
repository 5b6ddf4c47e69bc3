"""A whole stack of GATv2 layers as one function: the paper's network without the cost of a graph of small operations.

The same kernels and products in the same order as layer by layer, so the same numbers; but nothing is recorded, wrapped
or looked up between layers, ReLU is part of the layer before, and on the way back three arrays serve all layers. On a
small graph that is a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch_geometric.nn.dense.linear import Linear

from equipoise.kernels import gatv2
from equipoise.kernels.csr import Graph
from equipoise.kernels.lanes import filled_up
from equipoise.nn.engine import GRAPHS, obstacle
from equipoise.nn.features import Features
from equipoise.nn.functions import Array, Shape, attended, blocks_of, compile_for, gatv2_gradients
from equipoise.nn.gatv2 import FusedGATv2Conv, ends_with_attention
from equipoise.nn.looking import Coefficients, looks_of, watched

NONE = {np.dtype(kind): np.empty(0, kind) for kind in (np.float32, np.float64)}  # no dropout
KEEP = 2**24  # bytes; a product that is larger is computed again on the way back, which costs little beside its edges


def can_chain(convs: Sequence[Any], activation: nn.Module, x: Any, edge_index: Any) -> bool:
    """Whether layers with a ReLU between them are nothing but matrix, attention, matrix, attention, unobserved."""
    return (
        isinstance(activation, nn.ReLU)
        and all(_plain(conv) and conv.add_self_loops == convs[0].add_self_loops for conv in convs)
        and all(filled_up(conv.out_channels) == conv.out_channels for conv in convs[:-1])
        and convs[-1].heads == 1
        and not watched(activation)
        and not obstacle(convs[0], x, edge_index)
    )


def _plain(conv: Any) -> bool:
    if type(conv) is not FusedGATv2Conv:
        return False
    lin = conv._modules["lin_l"]  # as conv.lin_l, without the search that this is in every pass for every layer
    return (
        type(lin) is Linear
        and conv.share_weights
        and lin._parameters["bias"] is None
        and ends_with_attention(conv)
        and not (conv.training and conv.dropout)
        and not watched(conv, lin)
    )


def chained(convs: Sequence[Any], x: Tensor, edge_index: Tensor) -> Tensor:
    """What the layers make of x, with a ReLU between them; who only looks at a layer is shown it as it runs."""
    graph = GRAPHS.get(edge_index, x.shape[0], convs[0].add_self_loops)
    for conv in convs:
        compile_for("gatv2", x.dtype, conv.out_channels)
    features = Features(x)
    weights = [weight for conv in convs for weight in (conv.lin_l.weight, conv.att)]
    slopes = [conv.negative_slope for conv in convs]
    looks = [looks_of(conv) for conv in convs]

    def show(layer: int, read: Tensor | None, wrote: Tensor, alpha: Tensor) -> None:
        conv = convs[layer]
        given, attention = (x if read is None else read, edge_index), Coefficients(graph, alpha.view(-1, conv.heads))
        for look in looks[layer]:
            look(conv, given, {"attention": attention}, wrote[:, : conv.heads * conv.out_channels])

    shown, dense = show if any(looks) else None, x if features.dense else None
    out: Tensor = _Chain.apply(graph, features, slopes, shown, dense, *weights)  # type: ignore[no-untyped-call]
    # A slice of everything would cost a copy of everything on the way back.
    return out if out.shape[1] == convs[-1].out_channels else out[:, : convs[-1].out_channels]


class _Chain(Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (torch passes them by place)
        ctx: Any,
        graph: Graph,
        features: Features,
        slopes: list[float],
        show: Callable[[int, Tensor | None, Tensor, Tensor], None] | None,
        x: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        del x  # it is in the features; here so that it gets its gradient
        h: Tensor | None = None
        saved: list[Tensor | None] = []
        last = len(slopes) - 1
        for layer, slope in enumerate(slopes):
            W, att, shape = _wide(weights[2 * layer], weights[2 * layer + 1])
            product = features.times(W) if h is None else torch.mm(h, W.t())
            z = product.numpy().ravel()
            out, alpha, _ = attended(gatv2.forward, graph, z, (z, att), slope, NONE[z.dtype], layer < last, shape)
            read, h, coefficients = h, torch.from_numpy(out).view(graph.nodes, -1), torch.from_numpy(alpha)
            saved += (product if z.nbytes <= KEEP else None, h, coefficients)
            if show is not None:
                show(layer, read, h, coefficients)
        ctx.graph, ctx.features, ctx.slopes = graph, features, slopes
        ctx.save_for_backward(*weights, *saved)
        return h  # type: ignore[return-value]  # there is a layer

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        graph, features, depth = ctx.graph, ctx.features, len(ctx.slopes)
        tensors = ctx.saved_tensors
        weights, saved = tensors[: 2 * depth], tensors[2 * depth :]
        gradients: list[Tensor] = []
        for layer in reversed(range(depth)):
            W, att, shape = _wide(weights[2 * layer], weights[2 * layer + 1])
            product, out, alpha = saved[3 * layer : 3 * layer + 3]
            # What a layer read is what the one before it made.
            h = saved[3 * layer - 2] if layer else None
            if product is None:
                product = features.times(W) if h is None else torch.mm(h, W.t())
            z, o, al, g = product.numpy().ravel(), out.numpy().ravel(), alpha.numpy(), grad.numpy().ravel()
            below, none = layer < depth - 1, NONE[z.dtype]
            dz, _, datt = gatv2_gradients(
                graph, z, None, att, ctx.slopes[layer], none, (o, al, al), below, g, shape, ours=below
            )
            del product, z  # as large as all else, perhaps
            dproduct = torch.from_numpy(dz).view(graph.nodes, -1)
            dW = features.gradient(dproduct) if h is None else torch.mm(dproduct.t(), h)
            channels = weights[2 * layer + 1].shape[-1]
            gradients += [torch.from_numpy(datt).view(1, shape[0], -1)[..., :channels], dW[: len(weights[2 * layer])]]
            if layer or ctx.needs_input_grad[4]:
                reuse = below and grad.shape == (graph.nodes, W.shape[1])
                grad = torch.mm(dproduct, W, out=grad) if reuse else torch.mm(dproduct, W)
            del dz, dproduct  # or they would be there beside the next layer's
        to_x = grad if ctx.needs_input_grad[4] else None
        return None, None, None, None, to_x, *reversed(gradients)


def _wide(W: Tensor, att: Tensor) -> tuple[Tensor, Array, Shape]:
    """Matrix, attention and shape of a layer, with zeros after its last channel where these are not whole lanes."""
    heads, channels = att.shape[1:]
    W, a, missing = W.detach(), att.numpy(force=True).ravel(), filled_up(channels) - channels
    if missing:  # only a last layer, with one head
        W, a = F.pad(W, (0, 0, 0, missing)), np.pad(a, (0, missing))
    return W, a, (heads, blocks_of(channels + missing, W.dtype))
