"""A sparse matrix times a dense one: GCN's sum over neighbours, and features that are mostly zero."""

from __future__ import annotations

from typing import Any

from equipoise.kernels.compiled import compiled
from equipoise.kernels.lanes import fill, load, number_of, store


@compiled
def weighted_sum(
    lo: int, hi: int, ptr: Any, column: Any, weight: Any, order: Any, z: Any, out: Any, blocks: Any
) -> None:
    """out[v] = Σ_k weight[k] z[column[k]] over the entries k of row v.

    With ``order``, where each entry's weight stands; with the entries by column it is the way back.
    """
    lanes, row = blocks[0], number_of(blocks) * len(blocks[0])
    for v in range(lo, hi):
        for b in range(number_of(blocks)):
            c = b * len(lanes)
            sums = fill(z, 0, lanes)
            for k in range(ptr[v], ptr[v + 1]):
                w = weight[order[k]] if len(order) else weight[k]
                sums = sums + fill(z, w, lanes) * load(z, column[k] * row + c, lanes)
            store(out, v * row + c, sums)
