"""The two orders of edges: PyG's, in which users pass edge features and get coefficients, and that by target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch_geometric.utils import add_self_loops, remove_self_loops
from torch_geometric.utils.loop import compute_loop_attr

from equipoise.distributed.graph import DistributedGraph
from equipoise.errors import GraphError
from equipoise.kernels.csr import CSRGraph, NumNodes, edge_permutation
from equipoise.nn.dispatch import GRAPH_CACHE
from equipoise.nn.sparse_product import permute


@dataclass(frozen=True)
class EdgeOrder:
    """Both orders of the edges of a graph, as the kernels see it: after self-loops have been replaced.

    Attributes:
        edge_index: the edges in PyG's order: those that are kept, then the added self-loops.
        kept: indices of the edges that are no self-loops; None if all edges are kept.
        num_loops: number of added self-loops; None if the layer adds none.
        edges: edge in PyG's order at each position of the order by target.
        positions: position of each edge in the order by target.
    """

    edge_index: Tensor
    kept: Tensor | None
    num_loops: int | None
    edges: Tensor
    positions: Tensor

    def by_target(self, rows: Tensor) -> Tensor:
        """Rows per edge, from PyG's order to the order by target."""
        return permute(rows, self.edges, self.positions)

    def by_edge(self, rows: Tensor) -> Tensor:
        """Rows per edge, from the order by target to PyG's."""
        return permute(rows, self.positions, self.edges)

    def add_loop_features(self, conv: Any, edge_attr: Tensor) -> Tensor:
        """Features of the edges that are kept and of the added self-loops, as PyG computes them.

        Args:
            conv: the layer, for its ``fill_value``.
            edge_attr: features of the edges that the caller passed.

        Returns:
            Features in the order of ``edge_index``.

        Raises:
            GraphError: ``fill_value`` is invalid, or cannot be computed for these edges.
        """
        if self.num_loops is None:
            return edge_attr
        if self.kept is not None:
            edge_attr = edge_attr.index_select(0, self.kept)
        kept_edges = self.edge_index[:, : len(edge_attr)]
        try:
            features: Tensor = add_self_loops(
                kept_edges, edge_attr, fill_value=conv.fill_value, num_nodes=self.num_loops
            )[1]
        except Exception as error:
            raise GraphError(
                f"{type(conv).__name__}: cannot compute edge features of self-loops: {error}",
                where=f"fill_value={conv.fill_value!r}",
                remedy="pass a number, a tensor of edge_dim numbers, or add_self_loops=False; a reduction such as "
                "'mean' needs at least as many sources as targets",
            ) from error
        return features


def edge_order(edge_index: Tensor, graph: CSRGraph, nodes: NumNodes, self_loops: bool) -> EdgeOrder:
    """Order of the edges of a graph; computed once per ``edge_index``.

    Args:
        edge_index: the argument of the layer.
        graph: its graph, with the same ``nodes`` and ``self_loops``.
        nodes: number of nodes, or of sources and targets.
        self_loops: whether self-loops are replaced.

    Returns:
        The order.
    """

    def build() -> EdgeOrder:
        if not self_loops:
            return EdgeOrder(edge_index.clone(), None, None, *edge_permutation(edge_index, graph))
        loops = min(graph.sources, graph.targets)
        kept = torch.nonzero(edge_index[0] != edge_index[1]).flatten()
        augmented, _ = add_self_loops(remove_self_loops(edge_index)[0], num_nodes=loops)
        everything = len(kept) == edge_index.shape[1]
        permutation = edge_permutation(augmented, graph)
        return EdgeOrder(augmented, None if everything else kept, loops, *permutation)

    order: EdgeOrder = GRAPH_CACHE.get_or_build(edge_index, ("order", nodes, self_loops), build)
    return order


class UnsortedGraph(NamedTuple):
    """A graph in a call that torch.compile or torch.export traces: operators sort it when they run.

    Attributes:
        edge_index: (2, edges).
        sources: number of source nodes.
        targets: number of target nodes.
        self_loops: whether self-loops are replaced.
    """

    edge_index: Tensor
    sources: int
    targets: int
    self_loops: bool

    @property
    def edges(self) -> int:
        """Number of edges and of added self-loops, including edges that these replace."""
        loops: int = torch.sym_min(self.sources, self.targets) if self.self_loops else 0  # type: ignore[no-untyped-call]
        return self.edge_index.shape[1] + loops

    def add_loop_features(self, fill_value: Any, edge_attr: Tensor) -> Tensor:
        """Features of all edges and of the added self-loops; see :mod:`equipoise.nn.operators`."""
        if not self.self_loops:
            return edge_attr
        loops = self.edges - self.edge_index.shape[1]
        source, target = self.edge_index
        bins = torch.where(source == target, loops, target)  # an additional bin for replaced edges
        filled = compute_loop_attr(torch.stack([source, bins]), edge_attr, loops + 1, False, fill_value)
        return torch.cat([edge_attr, filled[:loops]])


Graph = CSRGraph | UnsortedGraph


def graph_of_call(edge_index: Tensor | DistributedGraph, sources: int, targets: int, self_loops: bool) -> Graph:
    """The sorted graph, or, in a traced call, the unsorted one."""
    if isinstance(edge_index, DistributedGraph):
        return edge_index.csr(self_loops)
    if torch.compiler.is_compiling():
        return UnsortedGraph(edge_index, sources, targets, self_loops)
    return GRAPH_CACHE.get(edge_index, sources if sources == targets else (sources, targets), self_loops)


class GraphEdges:
    """The graph of a call, and tensors with one row per edge in its order.

    Args:
        conv: the layer; it adds self-loops if it has an attribute ``add_self_loops`` that is true.
        edge_index: its graph.
        sources: number of source nodes.
        targets: number of target nodes.
    """

    def __init__(self, conv: Any, edge_index: Tensor | DistributedGraph, sources: int, targets: int) -> None:
        self._conv, self._given = conv, edge_index
        self._self_loops: bool = getattr(conv, "add_self_loops", False)
        self.graph = graph_of_call(edge_index, sources, targets, self._self_loops)

    @property
    def _edge_index(self) -> Tensor:
        return self._given.edge_index if isinstance(self._given, DistributedGraph) else self._given

    def _order(self, graph: CSRGraph) -> EdgeOrder:
        nodes = graph.sources if graph.sources == graph.targets else (graph.sources, graph.targets)
        return edge_order(self._edge_index, graph, nodes, self._self_loops)

    def features(self, edge_attr: Tensor) -> Tensor:
        """Edge features (edges, edge_dim), those of self-loops included, in the order by target."""
        rows = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
        if isinstance(self.graph, UnsortedGraph):
            return self.graph.add_loop_features(self._conv.fill_value, rows)
        order = self._order(self.graph)
        return order.by_target(order.add_loop_features(self._conv, rows))

    def attention_weights(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """What PyG returns for ``return_attention_weights=True``: edges and their coefficients, in PyG's order."""
        order = self._order(cast(CSRGraph, self.graph))  # traced calls that return coefficients are not fused
        edge_index = order.edge_index.clone() if self._self_loops else self._edge_index
        return edge_index, order.by_edge(coefficients)
