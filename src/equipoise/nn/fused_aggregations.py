"""PyG's SAGEConv, GraphConv and GINConv on fused kernels: sums and means over neighbours.

Each layer subclasses PyG's and overrides ``forward`` only, so that constructor, parameters, ``state_dict`` and numbers
are PyG's.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GINConv, GraphConv, MessagePassing, SAGEConv
from torch_geometric.nn.aggr import MeanAggregation
from torch_geometric.nn.dense.linear import Linear

from equipoise.distributed.graph import DistributedGraph, all_sources
from equipoise.kernels.csr import CSRGraph
from equipoise.nn.dispatch import call_pyg, fallback_reason, get_or_build
from equipoise.nn.edge_order import GraphEdges
from equipoise.nn.gcn_weights import unit_weights
from equipoise.nn.hooks import has_hooks, observers_of
from equipoise.nn.sparse_linear import linear
from equipoise.nn.sparse_product import weighted_sum

SPARSE_COST = 8  # of a multiplication in a sum over neighbours, relative to one in a dense product


class FusedSAGEConv(SAGEConv):  # type: ignore[misc]  # PyG is untyped
    r"""GraphSAGE layer of `"Inductive Representation Learning on Large Graphs" <https://arxiv.org/abs/1706.02216>`_:

    .. math::
        h'_v = W_1 \, \mathrm{mean}_u\, h_u + W_2 h_v + b

    One kernel computes the mean; nothing of size edges × channels is allocated. Where :math:`W_1` reduces the width, it
    is applied before the mean, which gives the same result at less cost. A call that the kernels do not support falls
    back on PyG's implementation: an aggregation other than sum or mean, another device or dtype, a sparse adjacency
    matrix (see :func:`equipoise.nn.dispatch.fallback_reason`).

    Args:
        in_channels (int or tuple): Size of each input sample; a tuple for bipartite input.
        out_channels (int): Size of each output sample.
        aggr (str or Aggregation, optional): Aggregation of neighbours. (default: ``"mean"``)
        normalize (bool, optional): Divide each output by its Euclidean norm. (default: ``False``)
        root_weight (bool, optional): Add the term :math:`W_2 h_v`. (default: ``True``)
        project (bool, optional): Apply a linear map and a ReLU to the neighbours first. (default: ``False``)
        bias (bool, optional): Learn an additive bias. (default: ``True``)
        **kwargs (optional): Arguments of :class:`torch_geometric.nn.MessagePassing`.

    Shapes:
        - **input:** node features :math:`(|V|, F_{in})`, or a pair :math:`((|V_s|, F_s), (|V_t|, F_t))` if bipartite,
          and edge indices :math:`(2, |E|)`; with ``project=True`` features may be sparse
        - **output:** :math:`(|V_t|, F_{out})`

    Example:
        >>> conv = FusedSAGEConv(8, 16)
        >>> conv((torch.randn(5, 8), torch.randn(2, 8)), torch.tensor([[4, 1], [0, 1]])).shape
        torch.Size([2, 16])
    """

    def forward(self, x: Any, edge_index: Any, size: tuple[int, int] | None = None) -> Any:
        """Run the layer; arguments are those of :class:`torch_geometric.nn.SAGEConv`."""
        reason = fallback_reason(self, x, edge_index, size=size)
        if reason:
            return call_pyg(self, reason, super().forward, x, edge_index, size)
        source, target = (x, x) if isinstance(x, Tensor) else x
        targets = num_targets(source, target, size)
        if self.project:
            source = linear(self.lin, source).relu()
        out = aggregate_and_project(self, self.lin_l, source, edge_index, targets)
        if self.root_weight and target is not None:
            out = out + linear(self.lin_r, target)
        return F.normalize(out, p=2.0, dim=-1) if self.normalize else out


class FusedGraphConv(GraphConv):  # type: ignore[misc]  # PyG is untyped
    r"""Layer of `"Weisfeiler and Leman Go Neural" <https://arxiv.org/abs/1810.02244>`_ with edge weights :math:`e`:

    .. math::
        h'_v = W_1 \sum_u e_{uv} h_u + W_2 h_v + b

    Memory and fallbacks are as for :class:`FusedSAGEConv`. The edge weights, ones by default, may require a gradient.

    Args:
        in_channels (int or tuple): Size of each input sample; a tuple for bipartite input.
        out_channels (int): Size of each output sample.
        aggr (str, optional): Aggregation of neighbours. (default: ``"add"``)
        bias (bool, optional): Learn an additive bias. (default: ``True``)
        **kwargs (optional): Arguments of :class:`torch_geometric.nn.MessagePassing`.

    Shapes:
        - **input:** node features :math:`(|V|, F_{in})`, or a pair :math:`((|V_s|, F_s), (|V_t|, F_t))` if bipartite,
          edge indices :math:`(2, |E|)`, and edge weights :math:`(|E|)` *(optional)*
        - **output:** :math:`(|V_t|, F_{out})`

    Example:
        >>> conv = FusedGraphConv(8, 16)
        >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]]), torch.tensor([0.5, 2.0])).shape
        torch.Size([3, 16])
    """

    def forward(
        self, x: Any, edge_index: Any, edge_weight: Tensor | None = None, size: tuple[int, int] | None = None
    ) -> Any:
        """Run the layer; arguments are those of :class:`torch_geometric.nn.GraphConv`."""
        reason = fallback_reason(self, x, edge_index, edge_attr=edge_weight, size=size)
        if reason:
            return call_pyg(self, reason, super().forward, x, edge_index, edge_weight, size)
        source, target = (x, x) if isinstance(x, Tensor) else x
        targets = num_targets(source, target, size)
        out = aggregate_and_project(self, self.lin_rel, source, edge_index, targets, edge_weight=edge_weight)
        return out if target is None else out + linear(self.lin_root, target)


class FusedGINConv(GINConv):  # type: ignore[misc]  # PyG is untyped
    r"""GIN layer of `"How Powerful are Graph Neural Networks?" <https://arxiv.org/abs/1810.00826>`_:

    .. math::
        h'_v = f\Big((1 + \epsilon) h_v + \sum_u h_u\Big)

    Memory and fallbacks are as for :class:`FusedSAGEConv`.

    Args:
        nn (torch.nn.Module): The network f, applied to each row.
        eps (float, optional): Initial value of ε. (default: ``0``)
        train_eps (bool, optional): Learn ε. (default: ``False``)
        **kwargs (optional): Arguments of :class:`torch_geometric.nn.MessagePassing`.

    Shapes:
        - **input:** node features :math:`(|V|, F_{in})`, or a pair :math:`((|V_s|, F_s), (|V_t|, F_t))` if bipartite,
          and edge indices :math:`(2, |E|)`
        - **output:** :math:`(|V_t|, F_{out})`

    Example:
        >>> conv = FusedGINConv(torch.nn.Linear(8, 16))
        >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 16])
    """

    def forward(self, x: Any, edge_index: Any, size: tuple[int, int] | None = None) -> Any:
        """Run the layer; arguments are those of :class:`torch_geometric.nn.GINConv`."""
        reason = fallback_reason(self, x, edge_index, size=size)
        if reason:
            return call_pyg(self, reason, super().forward, x, edge_index, size)
        source, target = (x, x) if isinstance(x, Tensor) else x
        out = aggregate(self, source, edge_index, num_targets(source, target, size))
        return self.nn(out if target is None else out + (1 + self.eps) * target)


def num_targets(source: Tensor, target: Tensor | None, size: tuple[int, int] | None) -> int:
    """Number of targets, as PyG takes it: that of their features, else of ``size``, else the number of sources."""
    if target is not None:
        return target.size(0)
    return source.size(0) if size is None else size[1]


def aggregate(
    conv: MessagePassing,
    z: Tensor,
    edge_index: Tensor | DistributedGraph,
    targets: int,
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Sum or mean over neighbours, as the layer's aggregation says.

    Args:
        conv: the layer.
        z: features of sources (sources, channels).
        edge_index: the graph.
        targets: number of targets.
        edge_weight: factors of the neighbours, (edges); a mean divides by the number of edges whatever their weights.

    Returns:
        (targets, channels).
    """
    z = all_sources(edge_index, z)
    edges = GraphEdges(conv, edge_index, z.size(0), targets)
    graph = cast(CSRGraph, edges.graph)  # traced calls are not fused
    mean = isinstance(conv.aggr_module, MeanAggregation)
    if edge_weight is not None and not mean:
        return weighted_sum(graph, edges.features(edge_weight).flatten(), z)
    build = mean_weights if mean else unit_weights
    key = (build.__name__, graph.sources, graph.targets, z.dtype)
    weight: Tensor = get_or_build(edge_index, key, lambda: build(graph).to(z.dtype))
    if edge_weight is not None:
        weight = weight * edges.features(edge_weight).flatten()
    return weighted_sum(graph, weight, z)


def mean_weights(graph: CSRGraph) -> Tensor:
    """1 / in-degree of the target of every edge."""
    degree = torch.from_numpy(graph.ptr).diff()
    return degree.double().reciprocal().repeat_interleave(degree)


def aggregate_and_project(
    conv: MessagePassing,
    lin: Any,
    source: Tensor,
    edge_index: Tensor | DistributedGraph,
    targets: int,
    *,
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Linear map of the sum or mean over neighbours; applied before it where this is cheaper.

    Args:
        conv: the layer.
        lin: its linear map.
        source: features of sources.
        edge_index: the graph.
        targets: number of targets.
        edge_weight: see :func:`aggregate`.

    Returns:
        (targets, output channels).
    """
    same_dtype = edge_weight is None or edge_weight.dtype == source.dtype  # else torch refuses the product, as in PyG
    if not (same_dtype and _projects_first(lin, source, edge_index, targets)):
        out: Tensor = lin(aggregate(conv, source, edge_index, targets, edge_weight))
        return out
    out = aggregate(conv, F.linear(source, lin.weight), edge_index, targets, edge_weight)
    return out if lin.bias is None else out + lin.bias


def _projects_first(lin: Any, source: Tensor, edge_index: Tensor | DistributedGraph, targets: int) -> bool:
    """Whether a linear map commutes with the sum unnoticed by hooks, and costs less before it."""
    if type(lin) is not Linear or has_hooks(lin) or observers_of(lin) or source.size(1) != lin.in_channels:
        return False
    wide, narrow = lin.in_channels, lin.out_channels
    if isinstance(edge_index, DistributedGraph):  # all ranks must exchange rows of the same width
        return bool(wide > narrow)
    saved = SPARSE_COST * edge_index.size(1) * (wide - narrow)
    return bool(saved > (source.size(0) - targets) * wide * narrow)
