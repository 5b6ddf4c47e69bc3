"""ωGAT: attention that each channel may take or leave."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv
from torch_geometric.typing import Adj

from equipoise.errors import ArchitectureError, ForwardError
from equipoise.nn.engine import obstacle
from equipoise.nn.gatv2 import finished, smoothed


class OmegaGATConv(GATv2Conv):  # type: ignore[misc]  # PyG comes without types
    r"""GATv2 with a learned weight ω between a node's own features and those of its neighbourhood.

    The layer of `"Improving Graph Neural Networks with Learnable Propagation Operators"
    <https://arxiv.org/abs/2210.17224>`_ with the attention of GATv2:

    .. math::
        Z = H W_s^\top, \qquad H' = (1 - \omega) \odot Z + \omega \odot A(H) Z

    where :math:`A_{ij} = \mathrm{softmax}_j\, a^\top \mathrm{LeakyReLU}(W_s h_j + W_t h_i)`. Each head and channel has
    its own ω: 1 smooths (GATv2), 0 does not (a linear layer), below 0 it sharpens. It starts at 1. Heads are
    concatenated or averaged after that, then the learned skip and the bias are added, as in GATv2.

    ω multiplies features that a rescaling multiplies already, so it takes part in no law.

    Args:
        args: those of :class:`torch_geometric.nn.GATv2Conv`; ``in_channels`` is a number, as a node's own features
            must be comparable with its neighbours'.
        kwargs: those of :class:`torch_geometric.nn.GATv2Conv`.

    Attributes:
        omega: ω, of shape (1, heads, out_channels) as ``att``.

    Example:
        >>> x, edge_index = torch.eye(3), torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> conv = OmegaGATConv(3, 4, heads=2, share_weights=True, bias=False)
        >>> conv(x, edge_index).shape
        torch.Size([3, 8])
        >>> _ = nn.init.zeros_(conv.omega)
        >>> torch.equal(conv(x, edge_index), conv.lin_l(x))
        True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.in_channels, int):
            raise ArchitectureError(
                f"{type(self).__name__} mixes a node's own features with its neighbours', so it needs one kind of node",
                where=f"in_channels={self.in_channels}",
                remedy="give one number of input channels; for two kinds of nodes use torch_geometric.nn.GATv2Conv",
            )
        self.omega = nn.Parameter(torch.ones_like(self.att))

    def reset_parameters(self) -> None:
        """PyG's random numbers for what PyG knows, ω = 1."""
        super().reset_parameters()
        if hasattr(self, "omega"):  # PyG's constructor calls this before ω exists
            nn.init.ones_(self.omega)

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """As :class:`torch_geometric.nn.GATv2Conv`, on one kind of node."""
        if not isinstance(x, Tensor):
            raise ForwardError(
                f"{type(self).__name__} takes one tensor of node features, got a {type(x).__name__}",
                remedy="pass x itself; for two kinds of nodes use torch_geometric.nn.GATv2Conv",
            )
        if obstacle(self, x, edge_index, edge_attr, return_attention_weights):
            return super().forward(x, edge_index, edge_attr, return_attention_weights)
        Z, AZ = smoothed(self, x, edge_index)
        return finished(self, self.update(AZ, (Z, Z)), x)

    def update(self, aggr_out: Tensor, x: tuple[Tensor, Tensor]) -> Tensor:
        """PyG's last step of message passing: ``aggr_out`` is A Z and ``x[0]`` is Z, both (nodes, heads, channels)."""
        Z = x[0]
        return (1 - self.omega) * Z + self.omega * aggr_out
