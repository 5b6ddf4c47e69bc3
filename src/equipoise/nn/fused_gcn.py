"""PyG's GCN layer on fused kernels, and GCN with the learned skip connection that PyG's attention layers have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import Adj

from equipoise.distributed.graph import DistributedGraph, all_sources
from equipoise.kernels.csr import CSRGraph
from equipoise.nn import operators
from equipoise.nn.dispatch import call_pyg, fallback_reason
from equipoise.nn.gcn_weights import distributed_weights, normalize_weights, unweighted_graph, weighted_graph
from equipoise.nn.kernel_arrays import pad_channels
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
        if torch.compiler.is_compiling():
            padded = operators.gcn(edge_index, pad_channels(z), self.normalize, self.add_self_loops, False)
            out = padded[:, : self.out_channels]
        else:
            graph, weight = self._graph_and_weights(edge_index, edge_weight, z)
            out = weighted_sum(graph, weight, all_sources(edge_index, z))
        return out if self.bias is None else out + self.bias

    def _graph_and_weights(
        self, edge_index: Tensor | DistributedGraph, edge_weight: Tensor | None, z: Tensor
    ) -> tuple[CSRGraph, Tensor]:
        """The graph, and the weights of its edges in the order by target."""
        loops, normalize = self.add_self_loops, self.normalize
        if isinstance(edge_index, DistributedGraph):
            if edge_weight is not None:
                return distributed_weights(self, edge_index, edge_weight)
            return unweighted_graph(edge_index, z.size(0), loops, normalize, z.dtype)
        if self.normalize and self.cached:
            if self._cached_edge_index is None:
                self._cached_edge_index = normalize_weights(self, edge_index, edge_weight, z)
            edge_index, edge_weight = self._cached_edge_index
            loops = normalize = False
        if edge_weight is None:
            return unweighted_graph(edge_index, z.size(0), loops, normalize, z.dtype)
        return weighted_graph(self, edge_index, edge_weight, z, self_loops=loops, normalize=normalize)


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
