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

Int = NDArray[np.int64]
Index = NDArray[np.int32]


@dataclass(frozen=True)
class Graph:
    """Compressed rows both ways.

    Attributes:
        nodes: how many nodes there are.
        ptr: the edges of target v are ``ptr[v] … ptr[v + 1]``.
        src: the source of each of them.
        given: which column of ``edge_index`` each of them was; −1 for a self-loop that was added.
        tptr: the edges of source u are ``tptr[u] … tptr[u + 1]``.
        dst: the target of each of these.
        edge: where each of these stands in the order by target.
    """

    nodes: int
    ptr: Int
    src: Index
    given: Int
    tptr: Int
    dst: Index
    edge: Int

    @property
    def edges(self) -> int:
        """How many edges there are, added self-loops included."""
        return len(self.src)


def build_graph(edge_index: Tensor, nodes: int, self_loops: bool) -> Graph:
    """Sort the edges; with ``self_loops``, each node's own loops are replaced by exactly one, as PyG does."""
    source, target = (row.contiguous().numpy() for row in edge_index.detach().cpu())
    ptr, src, given = _by_target(source, target, nodes, self_loops)
    tptr, dst, edge = _by_source(ptr, src, nodes)
    return Graph(nodes, ptr, src, given, tptr, dst, edge)


class Graphs:
    """The graphs of the edge indices seen so far, each for as long as its tensor lives."""

    def __init__(self) -> None:
        self._built: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def get(self, edge_index: Tensor, nodes: int, self_loops: bool) -> Graph:
        """The graph of an edge index."""
        graph: Graph = self.made(edge_index, (nodes, self_loops), lambda: build_graph(edge_index, nodes, self_loops))
        return graph

    def made(self, edge_index: Tensor, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` makes of an edge index, made again only if the tensor was written to since."""
        version, made = self._built.get(edge_index, (None, {}))  # type: ignore[no-untyped-call]
        if version != edge_index._version:
            made = {}
            self._built[edge_index] = (edge_index._version, made)
        if key not in made:
            made[key] = make()
        return made[key]


@njit(cache=True, nogil=True)
def _by_target(source: Int, target: Int, nodes: int, self_loops: bool) -> tuple[Int, Index, Int]:
    ptr = np.zeros(nodes + 1, np.int64)
    for e in range(len(source)):
        if not (self_loops and source[e] == target[e]):
            ptr[target[e] + 1] += 1
    for v in range(nodes):
        ptr[v + 1] += ptr[v] + (1 if self_loops else 0)
    place = ptr[:-1].copy()
    src, given = np.empty(ptr[nodes], np.int32), np.empty(ptr[nodes], np.int64)
    for e in range(len(source)):
        if not (self_loops and source[e] == target[e]):
            v = target[e]
            src[place[v]], given[place[v]] = source[e], e
            place[v] += 1
    if self_loops:
        for v in range(nodes):
            src[place[v]], given[place[v]] = v, -1
    return ptr, src, given


@njit(cache=True, nogil=True)
def _by_source(ptr: Int, src: Index, nodes: int) -> tuple[Int, Index, Int]:
    tptr = np.zeros(nodes + 1, np.int64)
    for k in range(len(src)):
        tptr[src[k] + 1] += 1
    for u in range(nodes):
        tptr[u + 1] += tptr[u]
    place = tptr[:-1].copy()
    dst, edge = np.empty(len(src), np.int32), np.empty(len(src), np.int64)
    for v in range(nodes):
        for k in range(ptr[v], ptr[v + 1]):
            u = src[k]
            dst[place[u]], edge[place[u]] = v, k
            place[u] += 1
    return tptr, dst, edge
