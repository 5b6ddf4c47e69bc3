"""GCN on fused kernels: PyG's layer, PyG's parameters, PyG's numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from equipoise.kernels.csr import Graph
from equipoise.nn.engine import GRAPHS, obstacle
from equipoise.nn.functions import weighted_sum


class FusedGCNConv(GCNConv):  # type: ignore[misc]  # PyG comes without types
    r"""`"Semi-supervised Classification with Graph Convolutional Networks" <https://arxiv.org/abs/1609.02907>`_:

    .. math::
        H' = \hat{D}^{-1/2} \hat{A} \hat{D}^{-1/2} H W^\top + b

    Weights of edges are computed once per graph. Falls back on PyG's own path as
    :class:`~equipoise.nn.gatv2.FusedGATv2Conv` does, also for edge weights that are given. Constructor, parameters and
    ``state_dict`` are those of :class:`torch_geometric.nn.GCNConv`.
    """

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Any:
        """As :class:`torch_geometric.nn.GCNConv`."""
        if not self.normalize or self.cached or obstacle(self, x, edge_index, edge_weight):
            return super().forward(x, edge_index, edge_weight)
        z = self.lin(x)
        out = weighted_sum(*self._graph(edge_index, z), z)
        return out if self.bias is None else out + self.bias

    def _graph(self, edge_index: Tensor, z: Tensor) -> tuple[Graph, Tensor]:
        def build() -> tuple[Graph, Tensor]:
            edges, weight = gcn_norm(
                edge_index, None, z.size(0), self.improved, self.add_self_loops, self.flow, z.dtype
            )
            graph = GRAPHS.get(edges, z.size(0), self_loops=False)
            return graph, weight[torch.from_numpy(graph.given)]

        key = ("gcn", z.size(0), self.improved, self.add_self_loops, z.dtype)
        made: tuple[Graph, Tensor] = GRAPHS.made(edge_index, key, build)
        return made
