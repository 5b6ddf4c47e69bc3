"""A graph as the kernels want it: edges sorted by target, and the same edges sorted by source.

Built once per ``edge_index`` and found again by the tensor itself; a tensor that has been written to since is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

CHUNK = 256  # nodes that a kernel handles together: many enough to fill vectors, few enough for the first cache
Int = NDArray[np.int64]
Index = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Graph:
    """Compressed rows both ways; any sparse matrix, with a graph's targets as rows and its sources as columns.

    Attributes:
        ptr: the edges of target v are ``ptr[v] … ptr[v + 1]``.
        src: the source of each of them.
        tptr: the edges of source u are ``tptr[u] … tptr[u + 1]``.
        dst: the target of each of these.
        edge: where each of these stands in the order by target.
        order: the targets, in each chunk of them those with fewer edges first.
        torder: the sources in the same way.
        symmetric: whether every edge is there in both directions. Then both orders are one, and ``edge`` leads from an
            edge to the one that comes back.
    """

    ptr: Int
    src: Index
    tptr: Int
    dst: Index
    edge: Index
    order: Index
    torder: Index
    symmetric: bool

    @property
    def nodes(self) -> int:
        """How many nodes there are, or rows."""
        return len(self.ptr) - 1

    @property
    def edges(self) -> int:
        """How many edges there are, added self-loops included."""
        return len(self.src)


def build_graph(edge_index: Tensor, nodes: int, self_loops: bool) -> Graph:
    """Sort the edges; with ``self_loops``, each node's own loops are replaced by exactly one, as PyG does."""
    source, target = (row.contiguous().numpy() for row in edge_index.detach().cpu())
    return _both_ways(*_by_target(source, target, nodes, self_loops), nodes)


def build_matrix(x: Tensor) -> Graph:
    """Where the entries of a sparse CSR tensor are, both ways."""
    rows, columns = (index.numpy() for index in (x.crow_indices(), x.col_indices()))
    return _both_ways(rows.astype(np.int64), columns.astype(np.int32), x.shape[1])


def _both_ways(ptr: Int, src: Index, columns: int) -> Graph:
    tptr, dst, _ = _turned(ptr, src, columns)
    ptr, src, _ = _turned(tptr, dst, len(ptr) - 1)  # twice turned, the sources of a target are sorted
    tptr, dst, edge = _turned(ptr, src, columns)
    order = _by_degree(ptr)
    if np.array_equal(ptr, tptr) and np.array_equal(src, dst):
        return Graph(ptr, src, ptr, src, edge, order, order, symmetric=True)
    return Graph(ptr, src, tptr, dst, edge, order, _by_degree(tptr), symmetric=False)


def _turned(ptr: Int, src: Index, columns: int) -> tuple[Int, Index, Index]:
    """Rows as columns: where these begin, the row of each of their entries, and where it stood before."""
    dst = np.empty(len(src), np.int32)
    edge: Index = np.empty(len(src), np.int32 if len(src) < 2**31 else np.int64)
    return _by_source(ptr, src, columns, dst, edge), dst, edge


def _by_degree(ptr: Int) -> Index:
    """Nodes of a chunk by number of edges: a processor that saw a loop end after five rounds expects five again."""
    chunk = np.arange(len(ptr) - 1) // CHUNK
    return np.lexsort((np.diff(ptr), chunk)).astype(np.int32)


class Graphs:
    """The graphs of the edge indices seen so far, each for as long as its tensor lives."""

    def __init__(self) -> None:
        self._built: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def get(self, edge_index: Tensor, nodes: int, self_loops: bool) -> Graph:
        """The graph of an edge index."""
        graph: Graph = self.made(edge_index, (nodes, self_loops), lambda: build_graph(edge_index, nodes, self_loops))
        return graph

    def made(self, tensor: Tensor, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` makes of a tensor, made again only if the tensor was written to since."""
        version, made = self._built.get(tensor, (None, {}))
        if version != tensor._version:
            made = {}
            self._built[tensor] = (tensor._version, made)
        if key not in made:
            made[key] = make()
        return made[key]


def reached(graph: Graph, active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which nodes are active or send to one that is; all of them, if most are active, as finding out has its price."""
    if 2 * np.count_nonzero(active) > len(active):
        return np.ones(graph.nodes, np.bool_)
    nodes: NDArray[np.bool_] = active.reshape(graph.nodes, -1).max(axis=1)
    return _reached(graph.ptr, graph.src, nodes)


@njit(cache=True, nogil=True)
def _reached(ptr: Int, src: Index, active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    found = active.copy()
    for v in range(len(active)):
        if active[v]:
            for k in range(ptr[v], ptr[v + 1]):
                found[src[k]] = True
    return found


@njit(cache=True, nogil=True)
def _by_target(source: Int, target: Int, nodes: int, self_loops: bool) -> tuple[Int, Index]:
    ptr = np.zeros(nodes + 1, np.int64)
    for e in range(len(source)):
        if not (self_loops and source[e] == target[e]):
            ptr[target[e] + 1] += 1
    for v in range(nodes):
        ptr[v + 1] += ptr[v] + (1 if self_loops else 0)
    place, src = ptr[:-1].copy(), np.empty(ptr[nodes], np.int32)
    for e in range(len(source)):
        if not (self_loops and source[e] == target[e]):
            src[place[target[e]]] = source[e]
            place[target[e]] += 1
    if self_loops:
        for v in range(nodes):
            src[place[v]] = v
    return ptr, src


@njit(cache=True, nogil=True)
def _by_source(ptr: Int, src: Index, columns: int, dst: Index, edge: Index) -> Int:
    tptr = np.zeros(columns + 1, np.int64)
    for k in range(len(src)):
        tptr[src[k] + 1] += 1
    for u in range(columns):
        tptr[u + 1] += tptr[u]
    place = tptr[:-1].copy()
    for v in range(len(ptr) - 1):
        for k in range(ptr[v], ptr[v + 1]):
            u = src[k]
            dst[place[u]], edge[place[u]] = v, k
            place[u] += 1
    return tptr
