"""Which rank owns which node: METIS, or blocks by greedy graph growing. Both balance the work of a layer.

A rank computes one message per incoming edge of its nodes, and for each node the matrix products and the message of its
self-loop, so the weight of a node is its in-degree plus a constant. The cost of a partition is its halo: rows that
ranks exchange in every layer.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from equipoise.distributed.parts.graph_arrays import GraphArrays
from equipoise.errors import ChoiceError, PartitionError
from equipoise.kernels.graph_growing import count_degrees, fill_neighbours, grow_blocks
from equipoise.kernels.jit import compilation_notice

Int = NDArray[np.int64]
Owner = NDArray[np.int32]

METHODS = ("auto", "metis", "blocks")
SEED = 0  # METIS breaks ties at random
NODE_WORK = 5  # edges that take as long as the products of one node: 3 to 10 at width 64
IMBALANCE = 10  # that METIS may leave, in thousandths


def choose_method(method: str, *, parts: int, nodes: int) -> str:
    """Resolve ``auto`` to METIS if it is installed, otherwise to blocks.

    Args:
        method: ``auto``, ``metis`` or ``blocks``.
        parts: number of parts.
        nodes: number of nodes. METIS needs more of them than parts.

    Returns:
        ``metis`` or ``blocks``.

    Raises:
        ChoiceError: If there is no such method.
        PartitionError: If METIS is requested and not installed.
    """
    if method not in METHODS:
        raise ChoiceError("method", method, METHODS)
    installed = find_spec("pymetis") is not None
    if method == "metis" and not installed:
        raise PartitionError(
            "METIS is not installed",
            where="method='metis'",
            remedy="pip install 'equipoise[metis]', or choose method='blocks'",
        )
    return "metis" if installed and method != "blocks" and 1 < parts < nodes else "blocks"


def work_of_nodes(graph: GraphArrays) -> Int:
    """Work of each node, in edges: its incoming edges and ``NODE_WORK``. Checks all indices."""
    work = np.full(graph.num_nodes, NODE_WORK, dtype=np.int64)
    for _, _, target in graph.edge_chunks():
        work += np.bincount(target, minlength=graph.num_nodes)
    return work


def assign_nodes(graph: GraphArrays, parts: int, method: str, weight: Int) -> Owner:
    """Assign every node to a part.

    Args:
        graph: the graph.
        parts: number of parts.
        method: ``metis`` or ``blocks``.
        weight: of each node; the parts have about equal sums.

    Returns:
        The part of each node.
    """
    if parts == 1:
        return np.zeros(graph.num_nodes, dtype=np.int32)
    with compilation_notice():
        _compile_kernels(method)
    ptr, neighbours = _undirected(graph)
    if method == "metis":
        return _metis(ptr, neighbours, weight, parts)
    peripheral_first = np.argsort(np.diff(ptr), kind="stable")
    return grow_blocks(ptr, neighbours, weight, peripheral_first, parts).astype(np.int32, copy=False)


def _compile_kernels(method: str) -> None:
    """Call the kernels on a graph without nodes, so that compilation is not taken for slow work."""
    none, neighbours = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    count_degrees(none, none, none)
    fill_neighbours(none, none, none, neighbours)
    if method == "blocks":
        grow_blocks(none, neighbours, none, none, 1)


def _undirected(graph: GraphArrays) -> tuple[Int, NDArray[np.int32]]:
    """Neighbours of each node in both directions, without self-loops, as row pointers and 32-bit indices."""
    degree = np.zeros(graph.num_nodes, dtype=np.int64)
    for _, source, target in graph.edge_chunks():
        count_degrees(source, target, degree)
    ptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(degree)])
    neighbours = np.empty(int(ptr[-1]), dtype=np.int32)
    cursor = ptr[:-1].copy()
    for _, source, target in graph.edge_chunks():
        fill_neighbours(source, target, cursor, neighbours)
    return ptr, neighbours


def _metis(ptr: Int, neighbours: NDArray[np.int32], weight: Int, parts: int) -> Owner:
    """Minimise the communication volume, which is the number of halo rows of all parts."""
    import pymetis  # noqa: PLC0415 — an extra

    shape = (len(weight), len(weight))
    pattern: Any = csr_array((np.ones(len(neighbours), dtype=np.int8), neighbours, ptr), shape=shape)
    pattern.sum_duplicates()  # METIS expects every neighbour once
    adjacency = pymetis.CSRAdjacency(pattern.indptr, pattern.indices)
    options = pymetis.Options(objtype=pymetis.ObjType.VOL, seed=SEED, ufactor=IMBALANCE)
    _, owner = pymetis.part_graph(parts, adjacency, vweights=weight, recursive=False, options=options)
    return np.asarray(owner, dtype=np.int32)
