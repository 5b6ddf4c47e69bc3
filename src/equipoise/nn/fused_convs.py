"""PyG's GATv2, GAT and GCN layers on fused kernels, and :func:`fuse_`, which swaps them into any model.

Each layer subclasses PyG's and overrides ``forward`` only, so that constructor, parameters, ``state_dict`` and numbers
are PyG's. :class:`ResidualGCNConv` adds to GCN the learned skip connection that PyG's attention layers have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import Adj

from equipoise.kernels.csr import CSRGraph
from equipoise.laws.validation import check_module
from equipoise.nn.autograd import gat_attention, gatv2_attention, weighted_sum
from equipoise.nn.dispatch import GRAPH_CACHE, fallback_reason
from equipoise.nn.sparse_linear import linear


class FusedGATv2Conv(GATv2Conv):  # type: ignore[misc]  # PyG is untyped
    r"""GATv2 layer of `"How Attentive are Graph Attention Networks?" <https://arxiv.org/abs/2105.14491>`_:

    .. math::
        h'_v = \sum_u \alpha_{uv} W_s h_u, \qquad
        \alpha_{uv} = \mathrm{softmax}_u\, a^\top \mathrm{LeakyReLU}(W_s h_u + W_t h_v)

    One kernel computes scores, softmax and sum of a node. Nothing of size edges × channels is allocated or saved for
    the backward pass. A call that the kernels do not support falls back on PyG's implementation: edge features,
    bipartite input, another device or dtype, requested attention weights
    (see :func:`equipoise.nn.dispatch.fallback_reason`).

    Args:
        in_channels (int or tuple): Size of each input sample; a tuple for bipartite input.
        out_channels (int): Size of each output sample, per head.
        heads (int, optional): Number of attention heads. (default: ``1``)
        concat (bool, optional): Concatenate heads; otherwise average them. (default: ``True``)
        negative_slope (float, optional): Slope of the LeakyReLU. (default: ``0.2``)
        dropout (float, optional): Dropout probability of the attention coefficients. (default: ``0``)
        add_self_loops (bool, optional): Add self-loops to the graph. (default: ``True``)
        edge_dim (int, optional): Size of edge features. (default: ``None``)
        fill_value (float, Tensor or str, optional): Edge features of self-loops. (default: ``"mean"``)
        bias (bool, optional): Learn an additive bias. (default: ``True``)
        share_weights (bool, optional): Use one matrix, W_s = W_t. (default: ``False``)
        residual (bool, optional): Add a learned skip connection. (default: ``False``)
        **kwargs (optional): Arguments of :class:`torch_geometric.nn.MessagePassing`.

    Shapes:
        - **input:** node features :math:`(|V|, F_{in})`, dense or sparse, and edge indices :math:`(2, |E|)`
        - **output:** :math:`(|V|, H \cdot F_{out})`, or :math:`(|V|, F_{out})` if heads are averaged

    Example:
        >>> conv = FusedGATv2Conv(8, 16, heads=4)
        >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 64])
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
        """Run the layer; arguments are those of :class:`torch_geometric.nn.GATv2Conv`.

        Args:
            x: node features.
            edge_index: the graph.
            edge_attr: edge features.
            return_attention_weights: return the coefficients as well.
            relu: apply a ReLU to the output, in the same kernel where possible.

        Returns:
            The new node features.
        """
        if fallback_reason(self, x, edge_index, edge_attr, return_attention_weights):
            return apply_relu(super().forward(x, edge_index, edge_attr, return_attention_weights), relu)
        relu_in_kernel = relu and can_fuse_relu(self)
        _, out = project_and_attend(self, x, edge_index, relu_in_kernel)
        return apply_relu(add_skip_and_bias(self, out, x), relu and not relu_in_kernel)


def project_and_attend(conv: Any, x: Tensor, edge_index: Tensor, relu: bool = False) -> tuple[Tensor, Tensor]:
    """Z = x W_sᵀ and A Z of a layer with the parameters of GATv2.

    Args:
        conv: the layer.
        x: node features.
        edge_index: the graph.
        relu: apply a ReLU to A Z.

    Returns:
        Z and A Z, (nodes, heads, channels) each.
    """
    H, C = conv.heads, conv.out_channels
    Z = linear(conv.lin_l, x).view(-1, H, C)
    target = None if conv.share_weights else linear(conv.lin_r, x).view(-1, H, C)
    graph = GRAPH_CACHE.get(edge_index, Z.size(0), conv.add_self_loops)
    dropout = conv.dropout if conv.training else 0.0
    return Z, gatv2_attention(graph, Z, target, conv.att[0], conv.negative_slope, dropout, relu)


def can_fuse_relu(conv: Any) -> bool:
    """Whether attention is the last operation (no averaging, skip or bias), so that its kernel can apply a ReLU."""
    return (conv.concat or conv.heads == 1) and conv.res is None and conv.bias is None


def add_skip_and_bias(conv: Any, out: Tensor, x: Tensor) -> Tensor:
    """Concatenate or average heads, then add the learned skip and the bias, as PyG's attention layers do."""
    out = out.flatten(1) if conv.concat or conv.heads == 1 else out.mean(dim=1)
    if conv.res is not None:
        out = out + linear(conv.res, x)
    if conv.bias is not None:
        out = out + conv.bias
    return out


def apply_relu(out: Any, relu: bool) -> Any:
    """A ReLU if requested."""
    return out.relu() if relu else out


class FusedGATConv(GATConv):  # type: ignore[misc]  # PyG is untyped
    r"""GAT (v1) layer of `"Graph Attention Networks" <https://arxiv.org/abs/1710.10903>`_:

    .. math::
        h'_v = \sum_u \alpha_{uv} z_u, \qquad z = W h, \qquad
        \alpha_{uv} = \mathrm{softmax}_u\, \mathrm{LeakyReLU}(a_{src}^\top z_u + a_{dst}^\top z_v)

    Memory and fallbacks are as for :class:`FusedGATv2Conv`.

    Args:
        in_channels (int or tuple): Size of each input sample; a tuple for bipartite input.
        out_channels (int): Size of each output sample, per head.
        heads (int, optional): Number of attention heads. (default: ``1``)
        concat (bool, optional): Concatenate heads; otherwise average them. (default: ``True``)
        negative_slope (float, optional): Slope of the LeakyReLU. (default: ``0.2``)
        dropout (float, optional): Dropout probability of the attention coefficients. (default: ``0``)
        add_self_loops (bool, optional): Add self-loops to the graph. (default: ``True``)
        edge_dim (int, optional): Size of edge features. (default: ``None``)
        fill_value (float, Tensor or str, optional): Edge features of self-loops. (default: ``"mean"``)
        bias (bool, optional): Learn an additive bias. (default: ``True``)
        residual (bool, optional): Add a learned skip connection. (default: ``False``)
        **kwargs (optional): Arguments of :class:`torch_geometric.nn.MessagePassing`.

    Shapes:
        - **input:** node features :math:`(|V|, F_{in})`, dense or sparse, and edge indices :math:`(2, |E|)`
        - **output:** :math:`(|V|, H \cdot F_{out})`, or :math:`(|V|, F_{out})` if heads are averaged

    Example:
        >>> conv = FusedGATConv(8, 16, heads=4, concat=False)
        >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 16])
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
        """Run the layer; arguments are those of :class:`torch_geometric.nn.GATConv`.

        Args:
            x: node features.
            edge_index: the graph.
            edge_attr: edge features.
            size: shape of a bipartite graph.
            return_attention_weights: return the coefficients as well.
            relu: apply a ReLU to the output, in the same kernel where possible.

        Returns:
            The new node features.
        """
        if fallback_reason(self, x, edge_index, edge_attr, size, return_attention_weights):
            return apply_relu(super().forward(x, edge_index, edge_attr, size, return_attention_weights), relu)
        z = linear(self.lin, x).view(-1, self.heads, self.out_channels)
        graph = GRAPH_CACHE.get(edge_index, z.size(0), self.add_self_loops)
        p, q = ((z * a).sum(dim=-1) for a in (self.att_src, self.att_dst))
        dropout, relu_in_kernel = self.dropout if self.training else 0.0, relu and can_fuse_relu(self)
        out = gat_attention(graph, z, p, q, self.negative_slope, dropout, relu_in_kernel)
        return apply_relu(add_skip_and_bias(self, out, x), relu and not relu_in_kernel)


class FusedGCNConv(GCNConv):  # type: ignore[misc]  # PyG is untyped
    r"""GCN layer of `"Semi-Supervised Classification with Graph Convolutional Networks"
    <https://arxiv.org/abs/1609.02907>`_:

    .. math::
        H' = \hat{D}^{-1/2} \hat{A} \hat{D}^{-1/2} H W^\top + b

    The normalised edge weights are computed once per graph. Fallbacks are as for :class:`FusedGATv2Conv`; given edge
    weights, ``cached=True`` and ``normalize=False`` fall back, too.

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
        - **input:** node features :math:`(|V|, F_{in})`, dense or sparse, and edge indices :math:`(2, |E|)`
        - **output:** :math:`(|V|, F_{out})`

    Example:
        >>> conv = FusedGCNConv(8, 16)
        >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 16])
    """

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Any:
        """Run the layer; arguments are those of :class:`torch_geometric.nn.GCNConv`."""
        if fallback_reason(self, x, edge_index, edge_weight):
            return super().forward(x, edge_index, edge_weight)
        z = linear(self.lin, x)
        graph = GRAPH_CACHE.get(edge_index, z.size(0), self.add_self_loops)
        key = ("gcn", z.size(0), self.add_self_loops, z.dtype)
        weight = GRAPH_CACHE.get_or_build(edge_index, key, lambda: symmetric_weights(graph).to(z.dtype))
        out = weighted_sum(graph, weight, z)
        return out if self.bias is None else out + self.bias


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


FUSED_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    GATv2Conv: FusedGATv2Conv,
    GATConv: FusedGATConv,
    GCNConv: FusedGCNConv,
}


def fuse_(model: nn.Module) -> nn.Module:
    """Replace the stock ``GATv2Conv``, ``GATConv`` and ``GCNConv`` layers of a model by fused ones, in place.

    Layers keep their identity, parameters, hooks and ``state_dict``, so optimizers stay valid. Layers of other classes,
    including subclasses of the three, are left unchanged.

    Args:
        model: any module.

    Returns:
        The same module.

    Raises:
        ModelError: ``model`` is not a module.

    Example:
        >>> from torch_geometric.nn import GAT
        >>> fuse_(GAT(8, 16, num_layers=2, out_channels=3, v2=True)).convs[0]
        FusedGATv2Conv(8, 16, heads=1)
    """
    check_module(model)
    for module in model.modules():
        if type(module) in FUSED_CLASSES:
            module.__class__ = FUSED_CLASSES[type(module)]
    return model


def unfuse_(model: nn.Module) -> nn.Module:
    """Turn the fused layers of a model back into PyG's own, in place: the inverse of :func:`fuse_`.

    Use it before ``torch.jit.script`` or to pickle a model for an environment without equipoise. Layers keep their
    identity, parameters, hooks and ``state_dict``. Layers without a counterpart in PyG (:class:`ResidualGCNConv`,
    :class:`~equipoise.nn.omega_gat.OmegaGATConv`) are left unchanged.

    Args:
        model: any module.

    Returns:
        The same module.

    Raises:
        ModelError: ``model`` is not a module.

    Example:
        >>> from torch_geometric.nn import GAT
        >>> unfuse_(fuse_(GAT(8, 16, num_layers=2, out_channels=3, v2=True))).convs[0]
        GATv2Conv(8, 16, heads=1)
    """
    check_module(model)
    stock = {fused: original for original, fused in FUSED_CLASSES.items()}
    for module in model.modules():
        if type(module) in stock:
            module.__class__ = stock[type(module)]
    return model
