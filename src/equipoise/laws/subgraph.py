"""A small induced subgraph of the inputs of a graph network.

Laws do not depend on the graph, so a few dozen connected nodes find them as well as millions. Recognised are
``edge_index`` with node features, and whatever has one row per node or per edge: ``edge_attr``, ``edge_weight``,
``edge_type``, ``batch``; dictionaries of a heterogeneous model; a sparse adjacency matrix; PyG's ``Data``,
``HeteroData`` and ``Batch``. Every edge type, every category of nodes and edges and several graphs of a batch stay
present.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

MAX_CATEGORIES = 64  # an integer attribute with more values is an identifier, not a category
SEED_EDGES = 6  # of all edge types together, from which the sample grows; at least MIN_SEED_EDGES of each type
MIN_SEED_EDGES = 2
SEED_GRAPHS = 4

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
EdgeType = tuple[str, ...]
HOMOGENEOUS: EdgeType = ("", "", "")


@dataclass
class Subgraph:
    """Sampled inputs, and the sizes of the sample and the graph.

    Attributes:
        inputs: Positional and keyword arguments of the model.
        nodes: Number of nodes in the sample and in the graph.
        edges: Number of edges in the sample and in the graph.
    """

    inputs: Inputs
    nodes: tuple[int, int]
    edges: tuple[int, int]

    def __str__(self) -> str:
        return (
            f"searched on an induced subgraph of {self.nodes[0]} of {self.nodes[1]} nodes and {self.edges[0]} of "
            f"{self.edges[1]} edges; sample=False searches on the whole graph"
        )


def sample_subgraph(inputs: Inputs, names: Sequence[str], size: int) -> Subgraph | None:
    """Reduce the inputs of a graph network to a small induced subgraph.

    Args:
        inputs: Positional and keyword arguments of the model.
        names: Names of the positional arguments, as far as known.
        size: Number of nodes to aim for.

    Returns:
        The sampled inputs; None if there is no graph among the inputs, or the graph is small already.
    """
    objects = [leaf for leaf in (*inputs[0], *inputs[1].values()) if is_data(leaf)]
    if len(objects) == 1:
        return _sample_data(inputs, objects[0], size)
    leaves, structure = tree_flatten_with_path((inputs[0], inputs[1]))
    graph = _Graph.recognise([_Leaf.create(path, value, names) for path, value in leaves])
    if graph is None or graph.num_nodes <= 2 * size:
        return None
    chosen = graph.choose_nodes(size)
    values = [graph.restrict(leaf, chosen) for leaf in graph.leaves]
    kept = [int(graph.kept_edges(edges, chosen).sum()) for edges in graph.edges]
    total = sum(edges.index.shape[1] for edges in graph.edges)
    count = sum(int(mask.sum()) for mask in chosen.values())
    return Subgraph(tree_unflatten(values, structure), (count, graph.num_nodes), (sum(kept), total))


def is_data(value: Any) -> bool:
    """Whether a value is one of PyG's data objects."""
    return not isinstance(value, Tensor) and all(hasattr(value, name) for name in ("subgraph", "to_dict", "num_nodes"))


def _sample_data(inputs: Inputs, data: Any, size: int) -> Subgraph | None:
    """Sample a ``Data``, ``HeteroData`` or ``Batch`` object among the inputs."""
    if data.num_nodes is None or data.num_nodes <= 2 * size:
        return None
    if getattr(data, "num_graphs", 1) > 2 and hasattr(data, "get_example"):
        small = _first_graphs(data, size)
    else:
        stores = {store._key: store for store in getattr(data, "edge_stores", [data])}
        leaves = [
            _Leaf(name="edge_index", value=store["edge_index"], key=key if isinstance(key, tuple) else None)
            for key, store in stores.items()
            if "edge_index" in store
        ]
        node_counts = {store._key or "": store.num_nodes for store in data.node_stores}
        graph = _Graph([*leaves], [_Edges(leaf.value, leaf.key or HOMOGENEOUS) for leaf in leaves], node_counts)
        if not leaves:
            return None
        chosen = {key: mask.nonzero().flatten() for key, mask in graph.choose_nodes(size).items()}
        small = data.subgraph(chosen if leaves[0].key else chosen[""])
    positional = tuple(small if value is data else value for value in inputs[0])
    keywords = {name: small if value is data else value for name, value in inputs[1].items()}
    return Subgraph((positional, keywords), (small.num_nodes, data.num_nodes), (small.num_edges, data.num_edges))


def _first_graphs(batch: Any, size: int) -> Any:
    """The first graphs of a batch with ``size`` nodes together, at least ``SEED_GRAPHS``."""
    graphs: list[Any] = []
    while len(graphs) < batch.num_graphs and (len(graphs) < SEED_GRAPHS or sum(g.num_nodes for g in graphs) < size):
        graphs.append(batch.get_example(len(graphs)))
    return type(batch).from_data_list(graphs)


@dataclass
class _Leaf:
    """A leaf of the inputs, with its argument's name and its key in a dictionary of a heterogeneous model."""

    name: str
    value: Any
    key: Any = None

    @classmethod
    def create(cls, path: tuple[Any, ...], value: Any, names: Sequence[str]) -> _Leaf:
        keys = [getattr(entry, "key", getattr(entry, "idx", None)) for entry in path]
        argument: Any = keys[1]
        name = str(argument)
        if keys[0] == 0:
            name = names[argument] if argument < len(names) else ""
        return cls(name, value, keys[2] if len(keys) > 2 else None)

    @property
    def is_edge_index(self) -> bool:
        value = self.value
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_floating_point():
            return False
        return value.ndim == 2 and value.shape[0] == 2 and value.dtype in (torch.int64, torch.int32)

    @property
    def is_adjacency(self) -> bool:
        value = self.value
        sparse = isinstance(value, Tensor) and value.layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
        return sparse and value.ndim == 2 and value.shape[0] == value.shape[1]


@dataclass
class _Edges:
    """A set of edges between two types of nodes."""

    index: Tensor
    type: EdgeType

    @property
    def ends(self) -> Iterator[tuple[str, Tensor]]:
        """Type and number of the nodes at both ends of every edge."""
        yield self.type[0], self.index[0]
        yield self.type[-1], self.index[1]


@dataclass
class _Graph:
    """The graph among the leaves of the inputs.

    Attributes:
        leaves: All leaves.
        edges: All sets of edges.
        node_counts: Number of nodes by type; the type of a homogeneous graph is ``""``.
    """

    leaves: list[_Leaf]
    edges: list[_Edges]
    node_counts: dict[str, int]
    by_leaf: dict[int, _Edges] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        return sum(self.node_counts.values())

    @classmethod
    def recognise(cls, leaves: list[_Leaf]) -> _Graph | None:
        """Find edges and numbers of nodes; None if there are no edges, or they do not fit to node features."""
        by_leaf = {}
        for leaf in leaves:
            if leaf.is_adjacency:
                coordinates = leaf.value.detach().to_sparse_coo().coalesce().indices()
                by_leaf[id(leaf)] = _Edges(coordinates.cpu(), HOMOGENEOUS)
            elif leaf.is_edge_index:
                edge_type = leaf.key if isinstance(leaf.key, tuple) else HOMOGENEOUS
                by_leaf[id(leaf)] = _Edges(leaf.value.detach().cpu().long(), edge_type)
        if not by_leaf:
            return None
        node_counts = {}
        for node_type in {end for edges in by_leaf.values() for end, _ in edges.ends}:
            smallest = 1 + max(
                (int(nodes.max()) for e in by_leaf.values() for t, nodes in e.ends if t == node_type and nodes.numel()),
                default=-1,
            )
            rows = [
                leaf.value.shape[0]
                for leaf in leaves
                if isinstance(leaf.value, Tensor)
                and leaf.value.ndim
                and (id(leaf) not in by_leaf or leaf.is_adjacency)
                and (not node_type or leaf.key == node_type)
                and leaf.value.shape[0] >= smallest
            ]
            if not rows:
                return None
            node_counts[node_type] = rows[0]
        return cls(leaves, list(by_leaf.values()), node_counts, by_leaf)

    def choose_nodes(self, size: int) -> dict[str, Tensor]:
        """Choose connected nodes that exercise every set of edges, every category and several graphs of a batch.

        Args:
            size: Number of nodes to aim for.

        Returns:
            A mask over the nodes of every type.
        """
        chosen = {key: torch.zeros(count, dtype=torch.bool) for key, count in self.node_counts.items()}
        seeds = max(SEED_EDGES // len(self.edges), MIN_SEED_EDGES)
        for edges in self.edges:
            self._choose(chosen, edges, torch.arange(edges.index.shape[1]), seeds)
        for leaf in self.leaves:
            self._choose_categories(chosen, leaf)
        while (missing := size - sum(int(mask.sum()) for mask in chosen.values())) > 0:
            before = size - missing
            for edges in self.edges:
                touches = torch.stack([chosen[key][nodes] for key, nodes in edges.ends]).any(dim=0)
                leaves = touches & ~self.kept_edges(edges, chosen)
                self._choose(chosen, edges, leaves.nonzero().flatten(), max(1, missing // (2 * len(self.edges))))
            if sum(int(mask.sum()) for mask in chosen.values()) == before:
                break  # all neighbours are in the sample
        return chosen

    def _choose(self, chosen: dict[str, Tensor], edges: _Edges, candidates: Tensor, count: int) -> None:
        """Add both ends of up to ``count`` edges, spread evenly over the candidates."""
        if candidates.numel() > count:
            candidates = candidates[torch.linspace(0, candidates.numel() - 1, count).long()]
        for key, nodes in edges.ends:
            chosen[key][nodes[candidates]] = True

    def _choose_categories(self, chosen: dict[str, Tensor], leaf: _Leaf) -> None:
        """Add an edge or a node of every category, if the leaf is an integer attribute of edges or nodes."""
        value = leaf.value
        if not isinstance(value, Tensor) or value.is_floating_point() or value.ndim != 1 or value.is_complex():
            return
        edges = self._edges_of(leaf)
        categories = torch.unique(value)
        if leaf.name == "batch":
            categories = categories[:SEED_GRAPHS]
        if categories.numel() > MAX_CATEGORIES:
            return
        for category in categories:
            members = (value == category).nonzero().flatten().cpu()
            if edges is not None:
                self._choose(chosen, edges, members, 2)
            elif (node_type := self._node_type_of(leaf)) is not None:
                chosen[node_type][members[:2]] = True

    def kept_edges(self, edges: _Edges, chosen: dict[str, Tensor]) -> Tensor:
        """Mask of the edges whose ends are both in the sample."""
        return torch.stack([chosen[key][nodes] for key, nodes in edges.ends]).all(dim=0)

    def restrict(self, leaf: _Leaf, chosen: dict[str, Tensor]) -> Any:
        """Restrict a leaf to the sample: relabel edges, and select the rows of node and edge attributes."""
        value = leaf.value
        if not isinstance(value, Tensor) or not value.ndim:
            return value
        own = self.by_leaf.get(id(leaf))
        if own is not None and leaf.is_adjacency:
            nodes = chosen[""].nonzero().flatten().to(value.device)
            small = value.detach().to_sparse().index_select(0, nodes).index_select(1, nodes).coalesce()
            return small if value.layout == torch.sparse_coo else small.to_sparse(layout=value.layout)
        if own is not None:
            kept = self.kept_edges(own, chosen)
            labels = [(chosen[key].cumsum(0) - 1)[nodes[kept]] for key, nodes in own.ends]
            return torch.stack(labels).to(value)
        edges = self._edges_of(leaf)
        if edges is not None:
            return value[self.kept_edges(edges, chosen).to(value.device)]
        node_type = self._node_type_of(leaf)
        if node_type is None:
            return value
        nodes = chosen[node_type].nonzero().flatten().to(value.device)
        rows = value.index_select(0, nodes)
        return torch.unique(rows, return_inverse=True)[1] if leaf.name == "batch" else rows

    def _edges_of(self, leaf: _Leaf) -> _Edges | None:
        """The set of edges of which a leaf is an attribute, with one row per edge."""
        matching = [
            edges
            for edges in self.edges
            if edges.index.shape[1] == leaf.value.shape[0] and (leaf.key is None or leaf.key == edges.type)
        ]
        is_node_attribute = self.node_counts.get("") == leaf.value.shape[0] and not leaf.name.startswith("edge")
        return matching[0] if matching and id(leaf) not in self.by_leaf and not is_node_attribute else None

    def _node_type_of(self, leaf: _Leaf) -> str | None:
        """The type of node of which a leaf is an attribute, with one row per node."""
        key = leaf.key if leaf.key in self.node_counts else ""
        return key if self.node_counts.get(key) == leaf.value.shape[0] and id(leaf) not in self.by_leaf else None
