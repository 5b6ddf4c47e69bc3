"""GATv2 on fused kernels: PyG's layer, PyG's parameters, PyG's numbers."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn import GATv2Conv

from equipoise.nn.engine import GRAPHS, obstacle
from equipoise.nn.features import linear
from equipoise.nn.functions import gatv2_attention


class FusedGATv2Conv(GATv2Conv):  # type: ignore[misc]  # PyG comes without types
    r"""`"How Attentive are Graph Attention Networks?" <https://arxiv.org/abs/2105.14491>`_, target by target:

    .. math::
        h'_v = \sum_u \alpha_{uv} W_s h_u, \qquad
        \alpha_{uv} = \mathrm{softmax}_u\, a^\top \mathrm{LeakyReLU}(W_s h_u + W_t h_v)

    Scores, softmax and sum of a node are computed in one visit, and nothing of size edges × width is kept for the way
    back. A call that the kernels do not serve (edge features, two kinds of nodes, another device, attention weights to
    be returned) takes PyG's own path. Constructor, parameters and ``state_dict`` are those of
    :class:`torch_geometric.nn.GATv2Conv`.
    """

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
        *,
        relu: bool = False,
    ) -> Any:
        """As :class:`torch_geometric.nn.GATv2Conv`; with ``relu``, the ReLU of its result in the same pass."""
        if obstacle(self, x, edge_index, edge_attr, return_attention_weights):
            return rectified(super().forward(x, edge_index, edge_attr, return_attention_weights), relu)
        early = relu and ends_with_attention(self)
        _, out = smoothed(self, x, edge_index, early)
        return rectified(finished(self, out, x), relu and not early)


def smoothed(conv: Any, x: Tensor, edge_index: Tensor, relu: bool = False) -> tuple[Tensor, Tensor]:
    """Z = W_s h and A Z of a layer with GATv2's parameters, (nodes, heads, channels) each; with ``relu``, A Z's."""
    H, C = conv.heads, conv.out_channels
    Z = linear(conv.lin_l, x).view(-1, H, C)
    target = None if conv.share_weights else linear(conv.lin_r, x).view(-1, H, C)
    graph = GRAPHS.get(edge_index, Z.size(0), conv.add_self_loops)
    dropout = conv.dropout if conv.training else 0.0
    return Z, gatv2_attention(graph, Z, target, conv.att[0], conv.negative_slope, dropout, relu)


def ends_with_attention(conv: Any) -> bool:
    """Whether nothing is added or averaged after attention, so that the kernel can do the ReLU."""
    return (conv.concat or conv.heads == 1) and conv.res is None and conv.bias is None


def finished(conv: Any, out: Tensor, x: Tensor) -> Tensor:
    """Heads joined or averaged, learned skip and bias added, as PyG's attention layers do."""
    out = out.flatten(1) if conv.concat or conv.heads == 1 else out.mean(dim=1)
    if conv.res is not None:
        out = out + linear(conv.res, x)
    if conv.bias is not None:
        out = out + conv.bias
    return out


def rectified(out: Any, relu: bool) -> Any:
    """The ReLU, where the kernel has not done it."""
    return out.relu() if relu else out
