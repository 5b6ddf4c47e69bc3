"""Edge weights of GCN, in the order by target."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_remaining_self_loops, scatter

from equipoise.distributed.graph import DistributedGraph, all_sources
from equipoise.errors import EdgeIndexError
from equipoise.kernels.csr import CSRGraph, edge_permutation
from equipoise.nn.dispatch import GRAPH_CACHE, get_or_build
from equipoise.nn.edge_order import edge_order
from equipoise.nn.sparse_product import permute


def unweighted_graph(
    edge_index: Tensor | DistributedGraph, nodes: int, self_loops: bool, normalize: bool, dtype: torch.dtype
) -> tuple[CSRGraph, Tensor]:
    """A graph without given edge weights, and the weights of its edges; computed once per ``edge_index``.

    Args:
        edge_index: the argument of the layer.
        nodes: number of nodes.
        self_loops: whether self-loops are replaced.
        normalize: weights of the symmetric normalisation; otherwise ones.
        dtype: of the weights.

    Returns:
        The graph and its weights (edges).
    """
    if isinstance(edge_index, DistributedGraph):
        graph = edge_index.csr(self_loops)
    else:
        graph = GRAPH_CACHE.get(edge_index, nodes, self_loops)

    def build() -> Tensor:
        if not normalize:
            return unit_weights(graph).to(dtype)
        degree = torch.from_numpy(graph.ptr).diff()
        return symmetric_weights(graph, all_sources(edge_index, degree)).to(dtype)

    weight: Tensor = get_or_build(edge_index, ("gcn", nodes, self_loops, normalize, dtype), build)
    return graph, weight


def weighted_graph(
    conv: GCNConv, edge_index: Tensor, edge_weight: Tensor, z: Tensor, *, self_loops: bool, normalize: bool
) -> tuple[CSRGraph, Tensor]:
    """A graph with given edge weights; weights without gradient are computed once per ``edge_index`` and weights.

    Args:
        conv: the layer.
        edge_index: its graph.
        edge_weight: (edges).
        z: projected features.
        self_loops: whether self-loops are replaced.
        normalize: apply the symmetric normalisation.

    Returns:
        The graph and its weights (edges).
    """
    graph = GRAPH_CACHE.get(edge_index, z.size(0), self_loops)

    def sorted_weights() -> Tensor:
        weight = normalize_weights(conv, edge_index, edge_weight, z)[1] if normalize else edge_weight
        return edge_order(edge_index, graph, z.size(0), self_loops).by_target(weight)

    if edge_weight.requires_grad:
        return graph, sorted_weights()
    key = ("weighted gcn", z.size(0), self_loops, normalize, conv.improved, z.dtype)
    return graph, GRAPH_CACHE.get_or_build_for_pair(edge_index, edge_weight, key, sorted_weights)


def normalize_weights(
    conv: GCNConv, edge_index: Tensor, edge_weight: Tensor | None, z: Tensor
) -> tuple[Tensor, Tensor]:
    """PyG's normalisation: edges with self-loops, and their weights, in PyG's order.

    Args:
        conv: the layer.
        edge_index: its graph.
        edge_weight: (edges); None for ones.
        z: projected features.

    Returns:
        Edges and weights.

    Raises:
        EdgeIndexError: an index is out of range.
    """
    GRAPH_CACHE.get(edge_index, z.size(0), conv.add_self_loops)  # checks indices
    try:
        normalized: tuple[Tensor, Tensor] = gcn_norm(
            edge_index, edge_weight, z.size(0), conv.improved, conv.add_self_loops, conv.flow, z.dtype
        )
    except IndexError as error:
        raise EdgeIndexError(
            f"{type(conv).__name__}: edge_index has a self-loop of a node that does not exist: {error}",
            where="edge_index",
            remedy=f"indices must lie in [0, {z.size(0)})",
        ) from error
    return normalized


def distributed_weights(conv: GCNConv, graph: DistributedGraph, edge_weight: Tensor) -> tuple[CSRGraph, Tensor]:
    """A distributed graph with given edge weights: PyG's normalisation, with the degrees of the halo by exchange.

    Args:
        conv: the layer.
        graph: the graph.
        edge_weight: (edges), of the edges of this rank.

    Returns:
        The sorted graph and its weights (edges).
    """
    csr, edge_index, own = graph.csr(conv.add_self_loops), graph.edge_index, graph.num_own
    if conv.add_self_loops:
        edge_index, edge_weight = add_remaining_self_loops(
            edge_index, edge_weight, 2.0 if conv.improved else 1.0, num_nodes=own
        )
    if conv.normalize:
        degree = graph.append_halo(scatter(edge_weight, edge_index[1], dim_size=own, reduce="sum"))
        scale = degree.pow(-0.5).masked_fill(degree == 0, 0)
        edge_weight = scale[edge_index[0]] * edge_weight * scale[edge_index[1]]
    return csr, permute(edge_weight, *edge_permutation(edge_index, csr))


def unit_weights(graph: CSRGraph) -> Tensor:
    """1 for every edge."""
    return torch.ones(graph.edges, dtype=torch.float64)


def symmetric_weights(graph: CSRGraph, degree: Tensor) -> Tensor:
    """1/√(d_u d_v) of every edge, as in PyG.

    Args:
        graph: the graph.
        degree: in-degree d of every source; targets are the first of them.

    Returns:
        (edges), in the order by target.
    """
    scale = degree.double().pow(-0.5)
    scale[degree == 0] = 0
    targets = graph.targets
    return scale[torch.from_numpy(graph.src)] * scale[:targets].repeat_interleave(degree[:targets])
