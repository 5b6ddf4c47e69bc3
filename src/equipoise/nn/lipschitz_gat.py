"""GAT with Lipschitz normalisation, which keeps attention scores bounded at any depth."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv
from torch_geometric.typing import Adj
from torch_geometric.utils import add_self_loops, remove_self_loops, scatter, softmax

from equipoise.distributed.graph import DistributedGraph, all_sources
from equipoise.errors import ArchitectureError, ForwardError


class LipschitzGATConv(GATConv):  # type: ignore[misc]  # PyG is untyped
    r"""GAT (v1) layer with the normalisation of `"Lipschitz Normalization for Self-Attention Layers with Application to
    Graph Neural Networks" <https://arxiv.org/abs/2103.04886>`_, which divides scores by a bound on their size. With
    :math:`z = W h` and per head,

    .. math::
        \alpha_{ij} = \mathrm{softmax}_{j \in N(i)}\, \frac{e_{ij}}{4\, \lVert a \rVert\, r_i}, \qquad
        e_{ij} = \mathrm{LeakyReLU}(a_{src}^\top z_j + a_{dst}^\top z_i),

    .. math::
        a = [a_{src} \Vert a_{dst}], \qquad
        r_i = \sqrt{\max_{j \in N(i)} \lVert z_j \rVert^2 + \lVert z_i \rVert^2}.

    The score is that of GAT, including the LeakyReLU; as this is positively homogeneous, dividing before it gives the
    same number. N(i) contains the self-loop where there is one. Every score lies in [−1/4, 1/4]. Gradients flow through
    the divisor. A norm of zero is replaced by 1: the score is 0 there and its gradient finite, so that attention
    initialised with zero can still be trained.

    The scores do not depend on the scale of a or z, so the laws are coarser than those of GAT: the norm of a head's
    whole W^l balances that of all its readers (of all heads together if they are averaged), and ‖a‖ is conserved by
    itself.

    Args:
        in_channels (int): Size of each input sample. Bipartite input is not supported.
        out_channels (int): Size of each output sample, per head.
        heads (int, optional): Number of attention heads. (default: ``1``)
        concat (bool, optional): Concatenate heads; otherwise average them. (default: ``True``)
        **kwargs (optional): Further arguments of :class:`torch_geometric.nn.GATConv`, except ``edge_dim``.

    Shapes:
        - **input:** node features :math:`(|V|, F_{in})` and edge indices :math:`(2, |E|)`
        - **output:** :math:`(|V|, H \cdot F_{out})`, or :math:`(|V|, F_{out})` if heads are averaged

    Raises:
        ArchitectureError: ``in_channels`` is a pair, or ``edge_dim`` is given.

    Example:
        >>> x, edge_index = torch.eye(3), torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> conv = LipschitzGATConv(3, 4, heads=2, bias=False)
        >>> out = conv(x, edge_index)
        >>> _ = conv.att_src.data.mul_(100), conv.att_dst.data.mul_(100)
        >>> torch.allclose(conv(x, edge_index), out, atol=1e-6)
        True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.in_channels, int) or self.edge_dim is not None:
            raise ArchitectureError(
                f"{type(self).__name__} does not support bipartite input or edge features",
                where=f"in_channels={self.in_channels}, edge_dim={self.edge_dim}",
                remedy="pass one number of input channels and no edge_dim, or use torch_geometric.nn.GATConv",
            )

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Run the layer; arguments are those of :class:`torch_geometric.nn.GATConv`.

        Args:
            x: node features.
            edge_index: the graph.
            edge_attr: must be None.
            size: shape of the graph.
            return_attention_weights: return the coefficients as well.

        Returns:
            The new node features; with ``return_attention_weights`` also the edges and their coefficients.

        Raises:
            ForwardError: ``x`` is not a tensor, or edge features are given.
        """
        if not isinstance(x, Tensor) or edge_attr is not None:
            raise ForwardError(
                f"{type(self).__name__} takes one tensor of node features and no edge features",
                remedy="pass x and edge_index only, or use torch_geometric.nn.GATConv",
            )
        if isinstance(edge_index, DistributedGraph):
            edge_index.check_features(x, type(self).__name__)
        H, C = self.heads, self.out_channels
        z = self.lin(x).view(-1, H, C)
        # Divide a by ‖a‖, not the score: the score of tiny a and tiny z would underflow.
        a = torch.stack([self.att_src, self.att_dst])
        a_src, a_dst = a / _nonzero_or_one(torch.linalg.vector_norm(a, dim=(0, -1), keepdim=True))
        source = all_sources(edge_index, z)
        if isinstance(edge_index, DistributedGraph):
            edge_index, size = edge_index.edge_index, (source.size(0), z.size(0))
        if self.add_self_loops:
            edge_index, _ = remove_self_loops(edge_index)
            edge_index, _ = add_self_loops(edge_index, num_nodes=z.size(0))
        norm = torch.linalg.vector_norm(source, dim=-1)

        # PyG parses the argument types from the comments above edge_updater and propagate.
        # edge_updater_type: (alpha: OptPairTensor, norm: OptPairTensor)
        alpha = self.edge_updater(
            edge_index,
            alpha=((source * a_src).sum(dim=-1), (z * a_dst).sum(dim=-1)),
            norm=norm if source is z else (norm, norm[: z.size(0)]),
            size=size,
        )
        # propagate_type: (x: OptPairTensor, alpha: Tensor)
        out = self.propagate(edge_index, x=(source, z), alpha=alpha, size=size)

        out = out.view(-1, H * C) if self.concat else out.mean(dim=1)
        if self.res is not None:
            out = out + self.res(x)
        if self.bias is not None:
            out = out + self.bias
        return (out, (edge_index, alpha)) if return_attention_weights else out

    def edge_update(  # noqa: PLR0917 (PyG passes arguments by name)
        self,
        alpha_j: Tensor,
        alpha_i: Tensor,
        norm_j: Tensor,
        norm_i: Tensor,
        index: Tensor,
        ptr: Tensor | None,
        dim_size: int | None,
    ) -> Tensor:
        """PyG's step per edge j → i: attention coefficients from the scores and norms of both end points."""
        score = F.leaky_relu(alpha_j + alpha_i, self.negative_slope)
        max_norm = scatter(norm_j, index, dim_size=dim_size, reduce="max")[index]
        zero = (max_norm == 0) & (norm_i == 0)
        r = torch.hypot(max_norm.masked_fill(zero, 1), norm_i)  # the gradient of hypot at (0, 0) is NaN
        alpha = softmax(score / (4 * r), index, ptr, dim_size)
        return F.dropout(alpha, p=self.dropout, training=self.training)


def _nonzero_or_one(norm: Tensor) -> Tensor:
    """Replace zeros by 1, for division."""
    return norm.masked_fill(norm == 0, 1)
