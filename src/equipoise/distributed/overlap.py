"""The order of work on a part: what can be done while boundary rows are on their way, and the edges that it visits."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.kernels.arguments import Edges
from equipoise.kernels.csr import CHUNK, CSRGraph, degree_order
from equipoise.kernels.threads import Range

MAX_NODES = 16 * CHUNK  # in a range: many ranges for several threads, at a call of a kernel each


class Overlap(NamedTuple):
    """The order of work on a part.

    Forward, inner targets are computed while the rows of the halo arrive. Backward, gradients of the halo are computed
    first, and those of own nodes while they are returned.

    If own nodes have their edges to each other in both directions, the backward pass visits each of them once
    (:func:`equipoise.kernels.gatv2.backward_symmetric`). It needs the reverse of every edge; that of an edge from the
    halo is on another rank. ``by_source`` then has, for each edge u → v from the halo, v among the neighbours of u and
    vice versa, and edge number ``edges`` as the reverse. Its coefficient and the gradient of its score are zero.

    Attributes:
        inner: ranges of targets, in whole chunks, that read own nodes only.
        boundary: all other ranges of targets.
        own: ranges of own nodes in ``by_source.order``.
        halo: ranges of halo nodes in ``by_source.order``.
        by_target: the edges into own nodes.
        by_source: the edges out of own nodes and out of the halo; with those into own nodes if ``symmetric``.
        symmetric: whether the edges between own nodes are.
    """

    inner: list[Range]
    boundary: list[Range]
    own: list[Range]
    halo: list[Range]
    by_target: Edges
    by_source: Edges
    symmetric: bool

    @property
    def num_own(self) -> int:
        """Number of own nodes."""
        return len(self.by_target.ptr) - 1

    @property
    def num_sources(self) -> int:
        """Number of own nodes and halo nodes."""
        return len(self.by_source.ptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges into own nodes."""
        return int(self.by_target.ptr[-1])


def plan_overlap(graph: CSRGraph) -> Overlap:
    """Plan the work on a graph from own nodes and halo to own nodes.

    Args:
        graph: the graph; sources are own nodes, then the halo, and targets are own nodes.

    Returns:
        The plan.

    Example:
        >>> import torch
        >>> from equipoise.kernels.csr import build_graph
        >>> edges = torch.tensor([[1, 600], [0, 550]])  # node 550 reads the halo
        >>> plan = plan_overlap(build_graph(edges, nodes=(601, 600), self_loops=False))
        >>> plan.inner, plan.boundary, plan.own, plan.halo, plan.symmetric
        ([(0, 512)], [(512, 600)], [(0, 600)], [(600, 601)], False)
    """
    own, sources = graph.targets, graph.sources
    from_own = graph.src < own
    starts = np.arange(0, own, CHUNK)
    flags = np.logical_or.reduceat(_reads_halo(graph, own), starts) if own else np.empty(0, np.bool_)
    cuts = np.flatnonzero(np.diff(flags)) + 1
    groups = list(pairwise([0, *cuts.tolist(), len(flags)])) if len(flags) else []
    ranges: dict[bool, list[Range]] = {False: [], True: []}
    for first, last in groups:
        ranges[bool(flags[first])].append((first * CHUNK, min(last * CHUNK, own)))
    work = (_cut(ranges[False]), _cut(ranges[True]), _cut([(0, own)]), _cut([(own, sources)]))
    halo_order = own + degree_order(graph.tptr[own:])
    if not _is_symmetric(graph, from_own):
        order = np.concatenate([degree_order(graph.tptr[: own + 1]), halo_order]).astype(np.int32)
        return Overlap(*work, graph.by_target, graph.by_source._replace(order=order), symmetric=False)
    by_source = _both_directions(graph, from_own, halo_order)
    none = by_source.position[:0]
    by_target = Edges(graph.ptr, by_source.neighbour[: graph.edges], none, graph.order)  # shares the larger array
    return Overlap(*work, by_target, by_source, symmetric=True)


def _reads_halo(graph: CSRGraph, own: int) -> NDArray[np.bool_]:
    """Whether a target has a source in the halo: sources of a target ascend, so the last one tells."""
    reads = np.diff(graph.ptr) > 0
    reads[reads] = graph.src[graph.ptr[1:][reads] - 1] >= own
    return reads


def _is_symmetric(graph: CSRGraph, from_own: NDArray[np.bool_]) -> bool:
    """Whether every edge between own nodes has its reverse: the own sources of each node are its targets."""
    own, inner_edges = graph.targets, int(graph.tptr[graph.targets])
    if np.count_nonzero(from_own) != inner_edges:
        return False
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(from_own)])
    return np.array_equal(before[graph.ptr], graph.tptr[: own + 1]) and np.array_equal(
        graph.src[from_own], graph.dst[:inner_edges]
    )


def _both_directions(graph: CSRGraph, from_own: NDArray[np.bool_], halo_order: NDArray[np.integer]) -> Edges:
    """All neighbours of own nodes and of the halo; see :class:`Overlap`."""
    own, edges, inner_edges = graph.targets, graph.edges, int(graph.tptr[graph.targets])
    ptr = np.concatenate([graph.ptr, edges + graph.tptr[own + 1 :] - inner_edges])
    neighbour = np.concatenate([graph.src, graph.dst[inner_edges:]])
    position = np.concatenate([np.full(edges, edges, graph.position.dtype), graph.position[inner_edges:]])
    position[:edges][from_own] = graph.position[:inner_edges]
    return Edges(ptr, neighbour, position, np.concatenate([graph.order, halo_order]).astype(np.int32))


def _cut(ranges: list[Range]) -> list[Range]:
    """Cut ranges into pieces that threads can share."""
    return [(start, min(start + MAX_NODES, hi)) for lo, hi in ranges for start in range(lo, hi, MAX_NODES)]
