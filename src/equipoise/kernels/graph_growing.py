"""Greedy graph growing: assign nodes to blocks, one block after another, so that few neighbours end up in other blocks.

The block takes next the node with the largest fraction of its neighbours in the block. Candidates wait in doubly linked
lists, one per level of that fraction, so that each edge costs constant time and memory is linear in nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.kernels.jit import jit, jit_inline

Int = NDArray[np.int64]
Index = NDArray[np.signedinteger[Any]]

LEVELS = 64  # of the fraction; more did not reduce the halo on Cora, Pubmed and random graphs
NONE = -1


@jit
def count_degrees(source: Index, target: Index, degree: Int) -> None:
    """Add the neighbours of each node in both directions to ``degree``; self-loops do not count."""
    for e in range(len(source)):
        u, v = source[e], target[e]
        if u != v:
            degree[u] += 1
            degree[v] += 1


@jit
def fill_neighbours(source: Index, target: Index, cursor: Int, neighbours: Index) -> None:
    """Write the neighbours of each node at its ``cursor``, which moves on."""
    for e in range(len(source)):
        u, v = source[e], target[e]
        if u != v:
            neighbours[cursor[u]] = v
            cursor[u] += 1
            neighbours[cursor[v]] = u
            cursor[v] += 1


@jit_inline
def _unlink(v: int, level: int, first: Index, after: Index, before: Index) -> None:
    if before[v] == NONE:
        first[level] = after[v]
    else:
        after[before[v]] = after[v]
    if after[v] != NONE:
        before[after[v]] = before[v]


@jit_inline
def _push(v: int, level: int, first: Index, after: Index, before: Index) -> None:
    before[v], after[v] = NONE, first[level]
    if first[level] != NONE:
        before[first[level]] = v
    first[level] = v


@jit
def grow_blocks(ptr: Int, neighbours: Index, weight: Int, seeds: Int, blocks: int) -> Index:
    """Assign every node to a block of about equal weight.

    Args:
        ptr: row pointers: the neighbours of node v are ``neighbours[ptr[v] : ptr[v + 1]]``.
        neighbours: of each node, in both directions.
        weight: of each node.
        seeds: all nodes; the first unassigned one starts a block, or continues it where no candidate is left.
        blocks: number of blocks.

    Returns:
        The block of each node.
    """
    nodes = len(weight)
    block = np.full(nodes, NONE, np.int32)
    inside = np.zeros(nodes, np.int64)  # neighbours in the current block
    first = np.full(LEVELS + 1, NONE, np.int64)  # of the candidates of each level
    after, before = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    total, taken, current, seed = weight.sum(), 0, 0, 0
    for _ in range(nodes):
        level = LEVELS
        while level >= 0 and first[level] == NONE:
            level -= 1
        if level >= 0:
            v = first[level]
            _unlink(v, level, first, after, before)
        else:
            while block[seeds[seed]] != NONE:
                seed += 1
            v = seeds[seed]
        block[v] = current
        taken += weight[v]
        if taken * blocks >= total * (current + 1) and current + 1 < blocks:  # full: candidates start over
            current = min(taken * blocks // total, blocks - 1)
            for level in range(LEVELS + 1):
                u = first[level]
                while u != NONE:
                    inside[u] = 0
                    u = after[u]
                first[level] = NONE
            continue
        for e in range(ptr[v], ptr[v + 1]):
            u = neighbours[e]
            if block[u] == NONE:
                degree = ptr[u + 1] - ptr[u]
                old, new = inside[u] * LEVELS // degree, (inside[u] + 1) * LEVELS // degree
                if inside[u] > 0:
                    if old == new:
                        inside[u] += 1
                        continue
                    _unlink(u, old, first, after, before)
                inside[u] += 1
                _push(u, new, first, after, before)
    return block
