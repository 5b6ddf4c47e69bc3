"""GCN with the learned skip that PyG's attention layers have."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import Adj

from equipoise.nn.features import linear
from equipoise.nn.gcn import FusedGCNConv


class ResidualGCNConv(FusedGCNConv):
    r"""GCN plus a linear skip without bias, named ``res`` as in PyG's attention layers with ``residual=True``:

    .. math::
        H' = \hat{D}^{-1/2} \hat{A} \hat{D}^{-1/2} H W^\top + H W_{res}^\top + b

    Args:
        args: those of :class:`torch_geometric.nn.GCNConv`.
        kwargs: those of :class:`torch_geometric.nn.GCNConv`.

    Example:
        >>> conv = ResidualGCNConv(3, 4, bias=False)
        >>> sorted(conv.state_dict())
        ['lin.weight', 'res.weight']
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.res = Linear(self.in_channels, self.out_channels, bias=False, weight_initializer="glorot")

    def reset_parameters(self) -> None:
        """PyG's random numbers for GCN and for the skip."""
        super().reset_parameters()
        if hasattr(self, "res"):  # PyG's constructor calls this before the skip exists
            self.res.reset_parameters()

    def forward(self, x: Tensor, edge_index: Adj, edge_weight: Tensor | None = None) -> Tensor:
        """As :class:`torch_geometric.nn.GCNConv`, plus the skip."""
        out: Tensor = super().forward(x, edge_index, edge_weight) + linear(self.res, x)
        return out
