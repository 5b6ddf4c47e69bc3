"""Graphs in compressed sparse row (CSR) and column (CSC) form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import EdgeIndexError, GraphError
from equipoise.kernels.arguments import Edges

MAX_NODES = 2**31
CHUNK = 256  # nodes that a kernel processes together: enough to fill SIMD vectors, few enough for the L1 cache
Int = NDArray[np.int64]
Index = NDArray[np.signedinteger[Any]]
NumNodes = int | tuple[int, int]  # of all nodes, or of the sources and the targets of a bipartite graph


@dataclass(frozen=True)
class CSRGraph:
    """A graph, or any sparse matrix with targets as rows and sources as columns, in CSR and CSC form.

    CSR, for the forward pass, sorts edges by target, then by source; CSC, for the backward pass, by source, then by
    target. Both hold the same edges. Arrays with one entry per edge (attention scores, edge weights) follow the order
    by target everywhere in the package.

    Attributes:
        ptr: CSR row pointers: the edges into target v are ``ptr[v] … ptr[v + 1] - 1``.
        src: CSR column indices: the source of each edge.
        tptr: CSC column pointers: the edges out of source u are ``tptr[u] … tptr[u + 1] - 1``.
        dst: CSC row indices: the target of each edge.
        position: index of each CSC edge in the order by target.
        order: targets, sorted by degree within each chunk of ``CHUNK``.
        torder: sources in the same way.
        symmetric: whether every edge u → v has its reverse v → u. Then both forms share their arrays, and ``position``
            leads from each edge to its reverse.

    Example:
        >>> from torch import tensor
        >>> graph = build_graph(tensor([[0, 0, 1], [2, 1, 2]]), nodes=3, self_loops=False)  # 0 → 2, 0 → 1, 1 → 2
        >>> graph.ptr.tolist(), graph.src.tolist()
        ([0, 0, 1, 3], [0, 0, 1])
        >>> graph.tptr.tolist(), graph.dst.tolist(), graph.position.tolist()
        ([0, 2, 3, 3], [1, 2, 2], [0, 1, 2])
    """

    ptr: Int
    src: Index
    tptr: Int
    dst: Index
    position: Index
    order: Index
    torder: Index
    symmetric: bool

    @cached_property
    def by_target(self) -> Edges:
        """The edges into each target, for kernels."""
        return Edges(self.ptr, self.src, np.empty(0, self.position.dtype), self.order)

    @cached_property
    def by_source(self) -> Edges:
        """The edges out of each source, for kernels."""
        return Edges(self.tptr, self.dst, self.position, self.torder)

    @property
    def sources(self) -> int:
        """Number of source nodes, or of columns."""
        return len(self.tptr) - 1

    @property
    def targets(self) -> int:
        """Number of target nodes, or of rows."""
        return len(self.ptr) - 1

    @property
    def edges(self) -> int:
        """Number of edges, including added self-loops."""
        return len(self.src)


def build_graph(edge_index: Tensor, nodes: NumNodes, self_loops: bool) -> CSRGraph:
    """Sort the edges of an ``edge_index``.

    Args:
        edge_index: (2, edges), sources and targets, of any integer type.
        nodes: number of nodes; of a bipartite graph, the pair (sources, targets).
        self_loops: replace all edges from a number to itself by exactly one for each number that is both a source and a
            target, as PyG does.

    Returns:
        The graph in both forms.

    Raises:
        EdgeIndexError: an index is negative or not less than the number of nodes.
        GraphError: the graph has 2³¹ nodes or more.
    """
    sources, targets = (nodes, nodes) if isinstance(nodes, int) else nodes
    if max(sources, targets) >= MAX_NODES:
        raise GraphError(f"a graph of {nodes} nodes is too large", remedy="the kernels number nodes by 32-bit integers")
    source, target = (row.contiguous().numpy().astype(np.int64, copy=False) for row in edge_index.detach().cpu())
    _check_indices(source, target, sources, targets, self_loops)
    return _sorted_graph(source, target, sources, targets, self_loops)


def _check_indices(source: Int, target: Int, sources: int, targets: int, self_loops: bool) -> None:
    """Check that all indices lie in [0, nodes), since the kernels read and write without bounds checks."""
    kind = "" if sources == targets else "{} "
    for name, indices, nodes in (("source", source, sources), ("target", target, targets)):
        if not len(indices) or (indices.min() >= 0 and indices.max() < nodes):
            continue
        invalid = (indices < 0) | (indices >= nodes)
        if self_loops:
            invalid &= source != target  # self-loops are replaced, whatever their index
        if invalid.any():
            edge = int(np.argmax(invalid))
            raise EdgeIndexError(
                f"edge_index refers to {name} node {indices[edge]}, but x has {nodes} {kind.format(name)}nodes",
                where=f"edge_index[{int(name == 'target')}, {edge}]",
                remedy=f"indices must lie in [0, {nodes})",
            )


def build_matrix(x: Tensor) -> CSRGraph:
    """Sparsity pattern of a sparse CSR tensor, in both forms."""
    ptr, columns = (index.numpy() for index in (x.crow_indices(), x.col_indices()))
    rows = np.repeat(np.arange(x.shape[0], dtype=np.int32), np.diff(ptr))
    return _sorted_graph(columns.astype(np.int32), rows, x.shape[1], x.shape[0])


def _sorted_graph(source: Index, target: Index, sources: int, targets: int, self_loops: bool = False) -> CSRGraph:
    ptr, tptr = _count_edges(source, target, sources, targets, self_loops)
    edges = int(ptr[-1])
    src, dst = np.empty(edges, np.int32), np.empty(edges, np.int32)
    position: Index = np.empty(edges, np.int32 if edges < 2**31 else np.int64)
    _sort_edges(source, target, self_loops, ptr, src, tptr, dst, position)
    order = degree_order(ptr)
    if np.array_equal(ptr, tptr) and np.array_equal(src, dst):
        return CSRGraph(ptr, src, ptr, src, position, order, order, symmetric=True)
    return CSRGraph(ptr, src, tptr, dst, position, order, degree_order(tptr), symmetric=False)


@njit(cache=True, nogil=True)
def _count_edges(source: Index, target: Index, sources: int, targets: int, self_loops: bool) -> tuple[Int, Int]:
    """Row pointers of the CSR and the CSC form."""
    ptr, tptr = np.zeros(targets + 1, np.int64), np.zeros(sources + 1, np.int64)
    for e in range(len(source)):
        if not (self_loops and source[e] == target[e]):
            ptr[target[e] + 1] += 1
            tptr[source[e] + 1] += 1
    loops = min(sources, targets) if self_loops else 0
    for v in range(targets):
        ptr[v + 1] += ptr[v] + (1 if v < loops else 0)
    for u in range(sources):
        tptr[u + 1] += tptr[u] + (1 if u < loops else 0)
    return ptr, tptr


@njit(cache=True, nogil=True)
def _sort_edges(
    source: Index, target: Index, self_loops: bool, ptr: Int, src: Index, tptr: Int, dst: Index, position: Index
) -> None:
    """Three counting sorts: by source, from there by target, so that sources are sorted, and from there by source."""
    cursor = tptr[:-1].copy()
    for e in range(len(source)):
        if not (self_loops and source[e] == target[e]):
            dst[cursor[source[e]]] = target[e]
            cursor[source[e]] += 1
    if self_loops:
        for v in range(min(len(ptr), len(tptr)) - 1):
            dst[cursor[v]] = v
    cursor = ptr[:-1].copy()
    for u in range(len(tptr) - 1):
        for k in range(tptr[u], tptr[u + 1]):
            src[cursor[dst[k]]] = u
            cursor[dst[k]] += 1
    cursor = tptr[:-1].copy()
    for v in range(len(ptr) - 1):
        for k in range(ptr[v], ptr[v + 1]):
            dst[cursor[src[k]]], position[cursor[src[k]]] = v, k
            cursor[src[k]] += 1


def degree_order(ptr: Int) -> Index:
    """Sort nodes within a chunk by degree, so that the branch predictor sees equal trip counts."""
    degree = np.diff(ptr)
    by_degree = _counting_argsort(degree, int(degree.max(initial=0)) + 1)
    order = by_degree[_counting_argsort(by_degree // CHUNK, len(degree) // CHUNK + 1)]
    return order.astype(np.int32)


def reachable_sources(graph: CSRGraph, active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Sources that are active as targets or have an edge to an active target: only these receive a gradient.

    Args:
        graph: the graph.
        active: (targets · heads), whether a target has a gradient.

    Returns:
        A mask over sources. It is all ones if most targets are active, as the search would cost more than it saves.
    """
    reachable = np.empty(graph.sources, np.bool_)
    mark_reachable(graph.ptr, graph.src, active, reachable)
    return reachable


@njit(cache=True, nogil=True)
def mark_reachable(ptr: Int, src: Index, active: NDArray[np.bool_], reachable: NDArray[np.bool_]) -> None:
    """:func:`reachable_sources`, written to ``reachable``."""
    targets = len(ptr) - 1
    if not len(active) or 2 * np.sum(active) > len(active):
        reachable[:] = True
        return
    heads, one_node_type = len(active) // targets, targets == len(reachable)
    reachable[:] = False
    for v in range(targets):
        active_v = np.any(active[v * heads : (v + 1) * heads])
        if one_node_type and active_v:
            reachable[v] = True
        for k in range(ptr[v], ptr[v + 1] if active_v else ptr[v]):
            reachable[src[k]] = True


def edge_permutation(edge_index: Tensor, graph: CSRGraph) -> tuple[Tensor, Tensor]:
    """Permutations between the order of an ``edge_index`` and the order by target.

    Args:
        edge_index: (2, edges), exactly the edges of the graph: after self-loops have been replaced.
        graph: the graph.

    Returns:
        The edge at each position of the order by target, and the position of each edge.

    Example:
        >>> edges = torch.tensor([[1, 0, 0], [2, 2, 1]])
        >>> edge_permutation(edges, build_graph(edges, nodes=3, self_loops=False))
        (tensor([2, 1, 0]), tensor([2, 1, 0]))
    """
    source, target = (row.contiguous().numpy() for row in edge_index)
    by_source = _counting_argsort(source, graph.sources)
    edges = by_source[_counting_argsort(target[by_source], graph.targets)]
    positions = np.empty_like(edges)
    positions[edges] = np.arange(len(edges))
    return torch.from_numpy(edges), torch.from_numpy(positions)


@njit(cache=True, nogil=True)
def _counting_argsort(keys: Int, count: int) -> Int:
    """Stable argsort of keys in [0, count)."""
    cursor = np.zeros(count + 1, np.int64)
    for k in range(len(keys)):
        cursor[keys[k] + 1] += 1
    for key in range(count):
        cursor[key + 1] += cursor[key]
    order = np.empty(len(keys), np.int64)
    for k in range(len(keys)):
        order[cursor[keys[k]]] = k
        cursor[keys[k]] += 1
    return order
