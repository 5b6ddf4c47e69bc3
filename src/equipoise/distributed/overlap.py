"""Which work on a part can be done while boundary rows are on their way."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.kernels.csr import CHUNK, CSRGraph, Index, degree_order
from equipoise.kernels.threads import Range

MAX_NODES = 16 * CHUNK  # in a range: many ranges for several threads, at a call of a kernel each


class Overlap(NamedTuple):
    """The order of work on a part.

    Forward, inner targets are computed while the rows of the halo arrive. Backward, gradients of the halo are computed
    first, and those of own nodes while they are returned.

    Attributes:
        inner: ranges of targets, in whole chunks, that read own nodes only.
        boundary: all other ranges of targets.
        source_order: sources sorted by degree within chunks, own nodes before the halo.
        own: ranges of own nodes in ``source_order``.
        halo: ranges of halo nodes in ``source_order``.
    """

    inner: list[Range]
    boundary: list[Range]
    source_order: Index
    own: list[Range]
    halo: list[Range]


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
        >>> plan.inner, plan.boundary, plan.own, plan.halo
        ([(0, 512)], [(512, 600)], [(0, 600)], [(600, 601)])
    """
    own, sources = graph.targets, graph.sources
    reads = _reads_halo(graph, own)
    starts = np.arange(0, own, CHUNK)
    flags = np.logical_or.reduceat(reads, starts) if own else np.empty(0, np.bool_)
    cuts = np.flatnonzero(np.diff(flags)) + 1
    groups = list(pairwise([0, *cuts.tolist(), len(flags)])) if len(flags) else []
    ranges: dict[bool, list[Range]] = {False: [], True: []}
    for first, last in groups:
        ranges[bool(flags[first])].append((first * CHUNK, min(last * CHUNK, own)))
    order = np.concatenate([degree_order(graph.tptr[: own + 1]), own + degree_order(graph.tptr[own:])])
    inner, boundary = _cut(ranges[False]), _cut(ranges[True])
    return Overlap(inner, boundary, order.astype(np.int32), _cut([(0, own)]), _cut([(own, sources)]))


def _reads_halo(graph: CSRGraph, own: int) -> NDArray[np.bool_]:
    """Whether a target has a source in the halo: sources of a target ascend, so the last one tells."""
    reads = np.diff(graph.ptr) > 0
    reads[reads] = graph.src[graph.ptr[1:][reads] - 1] >= own
    return reads


def _cut(ranges: list[Range]) -> list[Range]:
    """Cut ranges into pieces that threads can share."""
    return [(start, min(start + MAX_NODES, hi)) for lo, hi in ranges for start in range(lo, hi, MAX_NODES)]
