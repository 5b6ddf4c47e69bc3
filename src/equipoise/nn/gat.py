"""GAT (v1) on fused kernels: PyG's layer, PyG's parameters, PyG's numbers."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn import GATConv

from equipoise.nn.engine import GRAPHS, obstacle
from equipoise.nn.features import linear
from equipoise.nn.functions import gat_attention
from equipoise.nn.gatv2 import ends_with_attention, finished, rectified


class FusedGATConv(GATConv):  # type: ignore[misc]  # PyG comes without types
    r"""`"Graph Attention Networks" <https://arxiv.org/abs/1710.10903>`_, target by target:

    .. math::
        h'_v = \sum_u \alpha_{uv} z_u, \qquad z = W h, \qquad
        \alpha_{uv} = \mathrm{softmax}_u\, \mathrm{LeakyReLU}(a_{src}^\top z_u + a_{dst}^\top z_v)

    Falls back on PyG's own path as :class:`~equipoise.nn.gatv2.FusedGATv2Conv` does. Constructor, parameters and
    ``state_dict`` are those of :class:`torch_geometric.nn.GATConv`.
    """

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
        *,
        relu: bool = False,
    ) -> Any:
        """As :class:`torch_geometric.nn.GATConv`; with ``relu``, the ReLU of its result in the same pass."""
        if obstacle(self, x, edge_index, edge_attr, size, return_attention_weights):
            return rectified(super().forward(x, edge_index, edge_attr, size, return_attention_weights), relu)
        z = linear(self.lin, x).view(-1, self.heads, self.out_channels)
        graph = GRAPHS.get(edge_index, z.size(0), self.add_self_loops)
        p, q = ((z * a).sum(dim=-1) for a in (self.att_src, self.att_dst))
        dropout, early = self.dropout if self.training else 0.0, relu and ends_with_attention(self)
        out = gat_attention(graph, z, p, q, self.negative_slope, dropout, early)
        return rectified(finished(self, out, x), relu and not early)
