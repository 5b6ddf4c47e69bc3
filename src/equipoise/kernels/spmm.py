"""Sparse matrix times dense matrix: GCN's sum over neighbours, and products with sparse features."""

from __future__ import annotations

from typing import Any

from equipoise.kernels.jit import jit
from equipoise.kernels.simd import at, broadcast, horizontal_sum, load, num_blocks, store


@jit
def spmm(lo: int, hi: int, edges: Any, weight: Any, z: Any, out: Any, blocks: Any) -> None:
    """out[v] = Σ_k weight[k] z[neighbour[k]] over the edges k of node v.

    ``weight`` follows the order by target. With the edges by source this is the backward pass.
    """
    ptr, neighbour, position, _ = edges
    width, row = blocks[0], num_blocks(blocks) * len(blocks[0])
    for v in range(lo, hi):
        for b in range(num_blocks(blocks)):
            c = b * len(width)
            acc = broadcast(z, 0, width)
            for k in range(at(ptr, v), at(ptr, v + 1)):
                w = at(weight, at(position, k)) if len(position) else at(weight, k)
                acc = acc + broadcast(z, w, width) * load(z, at(neighbour, k) * row + c, width)
            store(out, v * row + c, acc)


@jit
def edge_dot(lo: int, hi: int, edges: Any, target: Any, source: Any, out: Any, blocks: Any) -> None:
    """out[k] = ⟨target[v], source[u]⟩ of every edge k from u to v: the gradient of its weight in a weighted sum."""
    ptr, src, _, _ = edges
    width, row = blocks[0], num_blocks(blocks) * len(blocks[0])
    for v in range(lo, hi):
        for k in range(at(ptr, v), at(ptr, v + 1)):
            acc = broadcast(source, 0, width)
            for b in range(num_blocks(blocks)):
                c = b * len(width)
                acc = acc + load(target, v * row + c, width) * load(source, at(src, k) * row + c, width)
            out[k] = horizontal_sum(acc)
