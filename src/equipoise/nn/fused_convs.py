"""PyG's GATv2, GAT and GCN layers on fused kernels, and :func:`fuse_`, which swaps them into any model.

Each layer subclasses PyG's and overrides ``forward`` only, so that constructor, parameters, ``state_dict`` and numbers
are PyG's.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, GraphConv, SAGEConv, TransformerConv
from torch_geometric.nn.dense.linear import Linear

from equipoise.distributed.graph import DistributedGraph, all_sources
from equipoise.laws.validation import check_module
from equipoise.nn.attention import gat_attention, gatv2_attention
from equipoise.nn.dispatch import call_pyg, fallback_reason
from equipoise.nn.distributed_gatv2 import can_overlap, overlapped_gatv2
from equipoise.nn.edge_order import GraphEdges, graph_of_call
from equipoise.nn.fused_aggregations import FusedGINConv, FusedGraphConv, FusedSAGEConv
from equipoise.nn.fused_gcn import FusedGCNConv
from equipoise.nn.fused_transformer import FusedTransformerConv
from equipoise.nn.hooks import has_hooks
from equipoise.nn.sparse_linear import linear


class FusedGATv2Conv(GATv2Conv):  # type: ignore[misc]  # PyG is untyped
    r"""GATv2 layer of `"How Attentive are Graph Attention Networks?" <https://arxiv.org/abs/2105.14491>`_:

    .. math::
        h'_v = \sum_u \alpha_{uv} W_s h_u, \qquad
        \alpha_{uv} = \mathrm{softmax}_u\, a^\top \mathrm{LeakyReLU}(W_s h_u + W_t h_v)

    One kernel computes scores, softmax and sum of a node. Nothing of size edges × channels is allocated or saved for
    the backward pass, except for projected edge features :math:`W_e e_{uv}`, if there are any, which are added inside
    the LeakyReLU, and their gradient. A call that the kernels do not support falls back on PyG's implementation: a
    sparse adjacency matrix, another device or dtype (see :func:`equipoise.nn.dispatch.fallback_reason`).

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
        - **input:** node features :math:`(|V|, F_{in})`, dense or sparse, or a pair
          :math:`((|V_s|, F_s), (|V_t|, F_t))` if bipartite; edge indices :math:`(2, |E|)`; edge features
          :math:`(|E|, D)` *(optional)*
        - **output:** :math:`(|V|, H \cdot F_{out})`, or :math:`(|V|, F_{out})` if heads are averaged; with
          ``return_attention_weights=True`` also edge indices and coefficients :math:`(|E|, H)`

    Example:
        >>> import torch
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
            x: node features, or a pair of those of sources and targets.
            edge_index: the graph.
            edge_attr: edge features.
            return_attention_weights: return the coefficients as well.
            relu: apply a ReLU to the output, in the same kernel where possible.

        Returns:
            The new node features; with ``return_attention_weights`` also edges and coefficients, as in PyG.
        """
        reason = fallback_reason(
            self, x, edge_index, edge_attr=edge_attr, return_attention_weights=return_attention_weights
        )
        if reason:
            out = call_pyg(self, reason, super().forward, x, edge_index, edge_attr, return_attention_weights)
            return apply_relu(out, relu)
        relu_in_kernel = relu and can_fuse_relu(self)
        if isinstance(x, Tensor) and edge_attr is None and not return_attention_weights:
            if isinstance(edge_index, DistributedGraph) and can_overlap(self):
                out = overlapped_gatv2(self, x, edge_index, relu_in_kernel)
            else:
                _, out = project_and_attend(self, x, edge_index, relu_in_kernel)
            return apply_relu(add_skip_and_bias(self, out, x), relu and not relu_in_kernel)
        H, C = self.heads, self.out_channels
        x_source, x_target = (x, x) if isinstance(x, Tensor) else x
        source = linear(self.lin_l, x_source).view(-1, H, C)
        shared = self.share_weights and x_source is x_target
        target = None if shared else linear(self.lin_r, x_target).view(-1, H, C)
        if isinstance(edge_index, DistributedGraph):
            source, target = edge_index.append_halo(source), source if target is None else target
        edges = GraphEdges(self, edge_index, source.size(0), source.size(0) if target is None else target.size(0))
        options = (self.att[0], self.negative_slope, self.dropout if self.training else 0.0, relu_in_kernel)
        edge = None if edge_attr is None else self.lin_edge(edges.features(edge_attr)).view(-1, H, C)
        out, coefficients = gatv2_attention(edges.graph, source, target, *options, edge=edge)
        out = apply_relu(add_skip_and_bias(self, out, x_target), relu and not relu_in_kernel)
        return (out, edges.attention_weights(coefficients)) if return_attention_weights else out


def project_and_attend(
    conv: Any, x: Tensor, edge_index: Tensor | DistributedGraph, relu: bool = False
) -> tuple[Tensor, Tensor]:
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
    targets = Z.size(0) if target is None else target.size(0)  # a hook of one linear map may change its rows
    graph = graph_of_call(edge_index, Z.size(0), targets, conv.add_self_loops)
    source = all_sources(edge_index, Z)
    if source is not Z and target is None:
        target = Z
    dropout = conv.dropout if conv.training else 0.0
    return Z, gatv2_attention(graph, source, target, conv.att[0], conv.negative_slope, dropout, relu)[0]


def can_fuse_relu(conv: Any) -> bool:
    """Whether attention is the last operation (no averaging, skip or bias), so that its kernel can apply a ReLU."""
    return (conv.concat or conv.heads == 1) and conv.res is None and conv.bias is None


def add_skip_and_bias(conv: Any, out: Tensor, x: Tensor | None) -> Tensor:
    """Concatenate or average heads, then add the learned skip and the bias, as PyG's attention layers do."""
    out = out.flatten(1) if conv.concat or conv.heads == 1 else out.mean(dim=1)
    if conv.res is not None and x is not None:
        out = out + linear(conv.res, x)
    if conv.bias is not None:
        out = out + conv.bias
    return out


def apply_relu(out: Any, relu: bool) -> Any:
    """A ReLU if requested; of the output only, if attention weights follow it."""
    if relu and isinstance(out, tuple):
        return out[0].relu(), *out[1:]
    return out.relu() if relu else out


class FusedGATConv(GATConv):  # type: ignore[misc]  # PyG is untyped
    r"""GAT (v1) layer of `"Graph Attention Networks" <https://arxiv.org/abs/1710.10903>`_:

    .. math::
        h'_v = \sum_u \alpha_{uv} z_u, \qquad z = W h, \qquad
        \alpha_{uv} = \mathrm{softmax}_u\, \mathrm{LeakyReLU}(a_{src}^\top z_u + a_{dst}^\top z_v)

    Memory and fallbacks are as for :class:`FusedGATv2Conv`. Edge features add :math:`a_{edge}^\top W_e e_{uv}` to the
    score: one number per edge and head, so that nothing of size edges × channels is allocated for them either.

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
        - **input:** node features :math:`(|V|, F_{in})`, dense or sparse, or a pair
          :math:`((|V_s|, F_s), (|V_t|, F_t))` if bipartite; edge indices :math:`(2, |E|)`; edge features
          :math:`(|E|, D)` *(optional)*
        - **output:** :math:`(|V|, H \cdot F_{out})`, or :math:`(|V|, F_{out})` if heads are averaged; with
          ``return_attention_weights=True`` also edge indices and coefficients :math:`(|E|, H)`

    Example:
        >>> import torch
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
            x: node features, or a pair of those of sources and targets; the latter may be None.
            edge_index: the graph.
            edge_attr: edge features.
            size: numbers of sources and targets.
            return_attention_weights: return the coefficients as well.
            relu: apply a ReLU to the output, in the same kernel where possible.

        Returns:
            The new node features; with ``return_attention_weights`` also edges and coefficients, as in PyG.
        """
        reason = fallback_reason(
            self, x, edge_index, edge_attr=edge_attr, size=size, return_attention_weights=return_attention_weights
        )
        if reason:
            arguments = (x, edge_index, edge_attr, size, return_attention_weights)
            return apply_relu(call_pyg(self, reason, super().forward, *arguments), relu)
        relu_in_kernel = relu and can_fuse_relu(self)
        x_source, x_target = (x, x) if isinstance(x, Tensor) else x
        shared = self.lin  # of sources and targets, or None
        source = self._project(shared or self.lin_src, x_source)
        target = source if shared and x_source is x_target else self._project(shared or self.lin_dst, x_target)
        source = all_sources(edge_index, source)
        p = (source * self.att_src).sum(dim=-1)
        if target is None:  # no features of targets: scores depend on sources only
            q = p.new_zeros(source.size(0) if size is None else size[1], self.heads)
        else:
            q = (target * self.att_dst).sum(dim=-1)
        edges = GraphEdges(self, edge_index, p.size(0), q.size(0))
        options = (self.negative_slope, self.dropout if self.training else 0.0, relu_in_kernel)
        edge = None if edge_attr is None else edge_scores(self, edges.features(edge_attr))
        out, coefficients = gat_attention(edges.graph, source, p, q, *options, edge=edge)
        out = apply_relu(add_skip_and_bias(self, out, x_target), relu and not relu_in_kernel)
        return (out, edges.attention_weights(coefficients)) if return_attention_weights else out

    def _project(self, lin: Linear, x: Tensor | None) -> Any:
        """Features (nodes, heads, channels); None for None."""
        return None if x is None else linear(lin, x).view(-1, self.heads, self.out_channels)


def edge_scores(conv: Any, edge_attr: Tensor) -> Tensor:
    """GAT's scores of edges a_edge · W_e e, (edges, heads), as e · (W_eᵀ a_edge): without a row of channels per edge.

    Args:
        conv: the layer.
        edge_attr: features (edges, edge_dim), or (edges) for one feature.

    Returns:
        (edges, heads).
    """
    H, C, lin = conv.heads, conv.out_channels, conv.lin_edge
    if type(lin) is not Linear or has_hooks(lin):  # also a lazy module before its first call
        scores: Tensor = (lin(edge_attr).view(-1, H, C) * conv.att_edge).sum(dim=-1)
        return scores
    vectors: Tensor = (lin.weight.view(H, C, -1) * conv.att_edge.view(H, C, 1)).sum(dim=1)
    return edge_attr @ vectors.t()


FUSED_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    GATv2Conv: FusedGATv2Conv,
    GATConv: FusedGATConv,
    GCNConv: FusedGCNConv,
    SAGEConv: FusedSAGEConv,
    GraphConv: FusedGraphConv,
    GINConv: FusedGINConv,
    TransformerConv: FusedTransformerConv,
}


def fuse_(model: nn.Module) -> nn.Module:
    """Replace the stock layers of a model by fused ones, in place.

    These are ``GATv2Conv``, ``GATConv``, ``GCNConv``, ``SAGEConv``, ``GraphConv``, ``GINConv`` and ``TransformerConv``.
    They keep their identity, parameters, hooks and ``state_dict``, so optimizers stay valid. Layers of other classes,
    including subclasses of these, are left unchanged.

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
    check_module(model, allow_lazy=True)
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
    check_module(model, allow_lazy=True)
    stock = {fused: original for original, fused in FUSED_CLASSES.items()}
    for module in model.modules():
        if type(module) in stock:
            module.__class__ = stock[type(module)]
    return model
