"""ωGAT: GATv2 with a learned mixture of attention and identity per channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv
from torch_geometric.typing import Adj

from equipoise.errors import ArchitectureError, ForwardError
from equipoise.nn.dispatch import call_pyg, fallback_reason
from equipoise.nn.fused_convs import add_skip_and_bias, project_and_attend


class OmegaGATConv(GATv2Conv):  # type: ignore[misc]  # PyG is untyped
    r"""ωGAT layer of `"Improving Graph Neural Networks with Learnable Propagation Operators"
    <https://arxiv.org/abs/2210.17224>`_, with the attention of GATv2:

    .. math::
        Z = H W_s^\top, \qquad H' = (1 - \omega) \odot Z + \omega \odot A(H) Z

    where :math:`A_{ij} = \mathrm{softmax}_j\, a^\top \mathrm{LeakyReLU}(W_s h_j + W_t h_i)`. Every head and channel has
    its own ω: 1 smooths (GATv2), 0 does not (a linear layer), and values below 0 sharpen. ω is initialised with 1. Then
    heads are concatenated or averaged and the learned skip and the bias are added, as in GATv2.

    ω multiplies features that a rescaling multiplies already, so it takes part in no law. The layer runs on the kernels
    of :class:`~equipoise.nn.fused_convs.FusedGATv2Conv`, with the same fallbacks.

    Args:
        in_channels (int): Size of each input sample. Bipartite input is not supported, as the layer mixes a node's own
            features with those of its neighbours.
        out_channels (int): Size of each output sample, per head.
        heads (int, optional): Number of attention heads. (default: ``1``)
        concat (bool, optional): Concatenate heads; otherwise average them. (default: ``True``)
        **kwargs (optional): Further arguments of :class:`torch_geometric.nn.GATv2Conv`.

    Shapes:
        - **input:** node features :math:`(|V|, F_{in})`, dense or sparse, and edge indices :math:`(2, |E|)`
        - **output:** :math:`(|V|, H \cdot F_{out})`, or :math:`(|V|, F_{out})` if heads are averaged

    Attributes:
        omega: ω, of shape (1, heads, out_channels) as ``att``.

    Raises:
        ArchitectureError: ``in_channels`` is a pair.

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
                f"{type(self).__name__} does not support bipartite input: it mixes features of sources and targets",
                where=f"in_channels={self.in_channels}",
                remedy="pass one number of input channels, or use torch_geometric.nn.GATv2Conv for bipartite input",
            )
        self.omega = nn.Parameter(torch.ones_like(self.att))

    def reset_parameters(self) -> None:
        """Reinitialise the parameters of GATv2 as PyG does, and set ω to 1."""
        super().reset_parameters()
        if hasattr(self, "omega"):  # PyG's constructor calls this method before ω exists
            nn.init.ones_(self.omega)

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Run the layer; arguments are those of :class:`torch_geometric.nn.GATv2Conv`.

        Args:
            x: node features.
            edge_index: the graph.
            edge_attr: edge features.
            return_attention_weights: return the coefficients as well.

        Returns:
            The new node features.

        Raises:
            ForwardError: ``x`` is not a tensor.
        """
        if not isinstance(x, Tensor):
            raise ForwardError(
                f"{type(self).__name__} takes one tensor of node features, got a {type(x).__name__}",
                remedy="pass x itself, or use torch_geometric.nn.GATv2Conv for bipartite input",
            )
        reason = fallback_reason(self, x, edge_index, edge_attr, return_attention_weights)
        if reason:
            return call_pyg(self, reason, super().forward, x, edge_index, edge_attr, return_attention_weights)
        Z, AZ = project_and_attend(self, x, edge_index)
        return add_skip_and_bias(self, self.update(AZ, (Z, Z)), x)

    def update(self, aggr_out: Tensor, x: tuple[Tensor, Tensor]) -> Tensor:
        """PyG's update step: ``aggr_out`` is A Z and ``x[0]`` is Z, both (nodes, heads, channels)."""
        Z = x[0]
        return (1 - self.omega) * Z + self.omega * aggr_out
