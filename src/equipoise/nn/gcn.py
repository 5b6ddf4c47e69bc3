"""GCN on fused kernels: PyG's layer, PyG's parameters, PyG's numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv

from equipoise.kernels.csr import Graph
from equipoise.nn.engine import GRAPHS, obstacle
from equipoise.nn.features import linear
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
        if obstacle(self, x, edge_index, edge_weight):
            return super().forward(x, edge_index, edge_weight)
        z = linear(self.lin, x)
        graph = GRAPHS.get(edge_index, z.size(0), self.add_self_loops)
        key = ("gcn", z.size(0), self.add_self_loops, z.dtype)
        out = weighted_sum(graph, GRAPHS.made(edge_index, key, lambda: symmetric_weights(graph).to(z.dtype)), z)
        return out if self.bias is None else out + self.bias


def symmetric_weights(graph: Graph) -> Tensor:
    """1/√(d_u d_v) for every edge, with the number of edges into a node as its degree, as PyG has it."""
    degree = torch.from_numpy(graph.ptr).diff()
    scale = degree.double().pow(-0.5)
    scale[degree == 0] = 0
    return scale[torch.from_numpy(graph.src)] * scale.repeat_interleave(degree)
