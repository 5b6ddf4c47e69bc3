"""How fast it could be: the arithmetic that an epoch cannot do without, at the rates that this machine reaches.

A layer from k to d features on N nodes and E edges (self-loops among them) has

* 2·N·k·d flops of matrix product forward and twice that backward; the first layer has no gradient to pass on, so once;
  where its features are stored sparsely, N·k is the number of those stored, and the rate that of plain loops;
* 7·E·d flops over edges forward, 17·E·d backward, and where 4·N·d bytes do not fit the last cache, 4·E·d bytes gathered
  forward and 8·E·d backward.

    floor = product flops / product rate + max(edge flops / loop rate, gathered bytes / bandwidth)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit

from equipoise.bench.clocks import Clock, clock

PRODUCTS, PASSES, ROUNDS = 10, 5000, 4  # repetitions that make about a millisecond each
VECTOR = 2048  # floats: two such vectors are in the innermost cache
COLUMNS = 64
USUAL_CACHE = 32 * 2**20  # where the machine does not say
LAST_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


@dataclass(frozen=True)
class Rates:
    """What the machine reaches on one thread.

    Attributes:
        product: flops per second of (N × d) @ (d × d) in torch.
        loop: flops per second of y ← y + a·x, compiled by Numba, over 2048 float32 that stay in the first cache.
        gather: bytes per second of summing random rows of 64 float32 out of an array of twice the last cache.
    """

    product: float
    loop: float
    gather: float


def floor_milliseconds(
    nodes: int, edges: int, widths: Sequence[int], rates: Rates, *, stored: int | None = None, cache: int = USUAL_CACHE
) -> float:
    """The floor of one epoch: one forward and one backward pass.

    Args:
        nodes: N.
        edges: E, with self-loops.
        widths: features in, hidden widths, classes out.
        rates: as measured in the same run.
        stored: entries of sparse features; none if they are dense.
        cache: bytes of the last cache.

    Example:
        >>> floor_milliseconds(1000, 5000, [64, 64], Rates(product=1e9, loop=1e9, gather=1e9))
        24.064
    """
    products = loops = gathered = 0.0
    for layer, (fan_in, d) in enumerate(pairwise(widths)):
        if layer == 0 and stored is not None:
            loops += 2 * (2 * stored * d)
        else:
            products += (2 if layer == 0 else 3) * (2 * nodes * fan_in * d)
        loops += (7 + 17) * edges * d
        gathered += (4 + 8) * edges * d if 4 * nodes * d > cache else 0
    return 1000 * (products / rates.product + max(loops / rates.loop, gathered / rates.gather))


def last_cache() -> int:
    """Bytes of the last cache, as the machine has it."""
    try:
        return 1024 * int(LAST_CACHE.read_text().strip().removesuffix("K"))
    except (OSError, ValueError):
        return USUAL_CACHE


def rate_clocks(nodes: int, width: int) -> dict[str, tuple[Clock, float]]:
    """What to time for the three rates, each with its flops or bytes."""
    x, W, product = torch.randn(nodes, width), torch.randn(width, width), torch.empty(nodes, width)
    y, z = np.zeros(VECTOR, np.float32), np.ones(VECTOR, np.float32)
    table = np.ones((max(2 * last_cache() // (4 * COLUMNS), 1), COLUMNS), np.float32)
    rows = np.random.default_rng(0).integers(len(table), size=20_000 * ROUNDS)
    total = np.zeros(COLUMNS, np.float32)

    def multiply() -> None:
        for _ in range(PRODUCTS):
            torch.mm(x, W, out=product)

    return {
        "product": (clock(multiply), 2.0 * nodes * width * width * PRODUCTS),
        "loop": (clock(lambda: _add_scaled(y, z, PASSES)), 2.0 * VECTOR * PASSES),
        "gather": (clock(lambda: _sum_rows(table, rows, total)), 4.0 * COLUMNS * len(rows)),
    }


@njit(cache=True, fastmath={"contract"})
def _add_scaled(y: Any, x: Any, passes: int) -> None:
    for p in range(passes):
        a = np.float32(p % 3 - 1)
        for i in range(len(y)):
            y[i] += a * x[i]


@njit(cache=True, fastmath={"contract"})
def _sum_rows(table: Any, rows: Any, total: Any) -> None:
    for row in rows:
        for c in range(table.shape[1]):
            total[c] += table[row, c]
