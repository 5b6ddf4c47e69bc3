"""PyG's GCN layer on fused kernels, and GCN with the learned skip connection that PyG's attention layers have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import Adj

from equipoise.errors import EdgeIndexError
from equipoise.kernels.csr import CSRGraph
from equipoise.nn.dispatch import GRAPH_CACHE, call_pyg, fallback_reason
from equipoise.nn.edge_order import edge_order
from equipoise.nn.sparse_linear import linear
from equipoise.nn.sparse_product import weighted_sum


class FusedGCNConv(GCNConv):  # type: ignore[misc]  # PyG is untyped
    r"""GCN layer of `"Semi-Supervised Classification with Graph Convolutional Networks"
    <https://arxiv.org/abs/1609.02907>`_:

    .. math::
        H' = \hat{D}^{-1/2} \hat{A} \hat{D}^{-1/2} H W^\top + b

    The normalised edge weights are computed once per graph, and again for other given weights or for weights that
    require a gradient. Fallbacks are as for :class:`~equipoise.nn.fused_convs.FusedGATv2Conv`.

    Args:
        in_channels (int): Size of each input sample.
        out_channels (int): Size of each output sample.
        improved (bool, optional): Self-loops of weight 2; as in PyG, without effect unless edge weights are given.
            (default: ``False``)
        cached (bool, optional): Cache the normalised graph of the first call. (default: ``False``)
        add_self_loops (bool, optional): Add self-loops to the graph; ``None`` for the same as ``normalize``.
            (default: ``None``)
        normalize (bool, optional): Apply the symmetric normalisation. (default: ``True``)
        bias (bool, optional): Learn an additive bias. (default: ``True``)
        **kwargs (optional): Arguments of :class:`torch_geometric.nn.MessagePassing`.

    Shapes:
        - **input:** node features :math:`(|V|, F_{in})`, dense or sparse, edge indices :math:`(2, |E|)` and edge
          weights :math:`(|E|)` *(optional)*
        - **output:** :math:`(|V|, F_{out})`

    Example:
        >>> conv = FusedGCNConv(8, 16)
        >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 16])
    """

    _cached_edge_index: tuple[Tensor, Tensor] | None

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Any:
        """Run the layer; arguments are those of :class:`torch_geometric.nn.GCNConv`."""
        reason = fallback_reason(self, x, edge_index, edge_attr=edge_weight)
        if reason:
            return call_pyg(self, reason, super().forward, x, edge_index, edge_weight)
        z = linear(self.lin, x)
        out = weighted_sum(*self._graph_and_weights(edge_index, edge_weight, z), z)
        return out if self.bias is None else out + self.bias

    def _graph_and_weights(self, edge_index: Tensor, edge_weight: Tensor | None, z: Tensor) -> tuple[CSRGraph, Tensor]:
        """The graph, and the weights of its edges in the order by target."""
        nodes, loops = z.size(0), self.add_self_loops
        if self.normalize and self.cached:
            if self._cached_edge_index is None:
                self._cached_edge_index = _normalize(self, edge_index, edge_weight, z)
            edge_index, edge_weight = self._cached_edge_index
            loops = False
        graph = GRAPH_CACHE.get(edge_index, nodes, loops)
        if edge_weight is None:
            build = symmetric_weights if self.normalize else unit_weights
            key = ("gcn", nodes, loops, self.normalize, z.dtype)
            weight: Tensor = GRAPH_CACHE.get_or_build(edge_index, key, lambda: build(graph).to(z.dtype))
            return graph, weight
        given = edge_weight

        def sorted_weights() -> Tensor:
            normalize = self.normalize and not self.cached
            weight = _normalize(self, edge_index, given, z)[1] if normalize else given
            return edge_order(edge_index, graph, nodes, loops).by_target(weight)

        if edge_weight.requires_grad:
            return graph, sorted_weights()
        options = ("weighted gcn", nodes, loops, self.normalize and not self.cached, self.improved, z.dtype)
        return graph, GRAPH_CACHE.get_or_build_for_pair(edge_index, edge_weight, options, sorted_weights)


def _normalize(conv: GCNConv, edge_index: Tensor, edge_weight: Tensor | None, z: Tensor) -> tuple[Tensor, Tensor]:
    """PyG's normalisation: edges with self-loops, and their weights, in PyG's order."""
    GRAPH_CACHE.get(edge_index, z.size(0), conv.add_self_loops)  # checks indices
    try:
        normalized: tuple[Tensor, Tensor] = gcn_norm(
            edge_index, edge_weight, z.size(0), conv.improved, conv.add_self_loops, conv.flow, z.dtype
        )
    except IndexError as error:
        raise EdgeIndexError(
            f"{type(conv).__name__}: edge_index has a self-loop of a node that does not exist: {error}",
            where="edge_index",
            remedy=f"indices must lie in [0, {z.size(0)})",
        ) from error
    return normalized


def unit_weights(graph: CSRGraph) -> Tensor:
    """1 for every edge."""
    return torch.ones(graph.edges, dtype=torch.float64)


def symmetric_weights(graph: CSRGraph) -> Tensor:
    """1/√(d_u d_v) of every edge, with d the in-degree, as in PyG."""
    degree = torch.from_numpy(graph.ptr).diff()
    scale = degree.double().pow(-0.5)
    scale[degree == 0] = 0
    return scale[torch.from_numpy(graph.src)] * scale.repeat_interleave(degree)


class ResidualGCNConv(FusedGCNConv):
    r"""GCN layer (`Kipf & Welling <https://arxiv.org/abs/1609.02907>`_) with a learned linear skip connection:

    .. math::
        H' = \hat{D}^{-1/2} \hat{A} \hat{D}^{-1/2} H W^\top + H W_{res}^\top + b

    The skip has no bias and is named ``res``, as in PyG's attention layers with ``residual=True``.

    Args:
        *args: Arguments of :class:`FusedGCNConv`.
        **kwargs: Arguments of :class:`FusedGCNConv`.

    Shapes:
        - **input:** node features :math:`(|V|, F_{in})`, dense or sparse, and edge indices :math:`(2, |E|)`
        - **output:** :math:`(|V|, F_{out})`

    Example:
        >>> conv = ResidualGCNConv(3, 4, bias=False)
        >>> sorted(conv.state_dict())
        ['lin.weight', 'res.weight']
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.res = Linear(self.in_channels, self.out_channels, bias=False, weight_initializer="glorot")

    def reset_parameters(self) -> None:
        """Reinitialise all parameters as PyG does, including the skip."""
        super().reset_parameters()
        if hasattr(self, "res"):  # PyG's constructor calls this method before the skip exists
            self.res.reset_parameters()

    def forward(self, x: Tensor, edge_index: Adj, edge_weight: Tensor | None = None) -> Tensor:
        """Run the layer; arguments are those of :class:`torch_geometric.nn.GCNConv`."""
        out: Tensor = super().forward(x, edge_index, edge_weight) + linear(self.res, x)
        return out
