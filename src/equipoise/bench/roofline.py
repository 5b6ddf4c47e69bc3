"""Roofline: a lower bound on the time of an epoch, from its arithmetic and the throughput of this machine.

A layer from k to d features on N nodes and E edges (including self-loops) needs

* 2·N·k·d flops of matrix products in the forward pass and twice that in the backward pass. The first layer passes no
  gradient on, so its backward pass needs 2·N·k·d. If its features are stored sparsely, the number of stored entries
  replaces N·k, at the throughput of plain loops;
* 7·E·d flops over edges in the forward pass and 17·E·d in the backward pass; if 4·N·d bytes exceed the last-level
  cache, also 4·E·d gathered bytes in the forward pass and 8·E·d in the backward pass.

    roofline = product flops / product throughput + max(edge flops / loop throughput, gathered bytes / bandwidth)

The product throughput is the higher one of the project's kernels and of torch's BLAS. All nodes are assumed to have a
gradient; kernels skip those that reach no training node, which can save more than the bound allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit

from equipoise.bench.timing import Timer, make_timer
from equipoise.nn.dense_product import multiply_task

PRODUCT_REPEATS, LOOP_PASSES, GATHER_ROUNDS = 10, 5000, 4  # each makes about a millisecond per call
VECTOR_LENGTH = 2048  # floats; two such vectors fit into the L1 cache
GATHER_COLUMNS = 64
DEFAULT_CACHE = 32 * 2**20  # where the operating system does not report the size
CACHE_SIZE_FILE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


@dataclass(frozen=True)
class Throughput:
    """Measured throughput of one thread.

    Attributes:
        product: Flops per second of (N × d) @ (d × d), by the kernels of this project.
        blas: The same by torch.
        loop: Flops per second of y ← y + a·x, compiled by Numba, over 2048 float32 that stay in the L1 cache.
        gather: Bytes per second of summing random rows of 64 float32 from an array of twice the last-level cache.
    """

    product: float
    blas: float
    loop: float
    gather: float


def roofline_milliseconds(
    nodes: int,
    edges: int,
    widths: Sequence[int],
    throughput: Throughput,
    *,
    stored: int | None = None,
    cache: int = DEFAULT_CACHE,
) -> float:
    """Lower bound on one epoch: one forward and one backward pass.

    Args:
        nodes: N.
        edges: E, including self-loops.
        widths: Input features, hidden widths and classes.
        throughput: Measured in the same run.
        stored: Stored entries of sparse features; None if they are dense.
        cache: Bytes of the last-level cache.

    Returns:
        Milliseconds.

    Example:
        >>> roofline_milliseconds(1000, 5000, [64, 64], Throughput(1e9, 1e9, 1e9, 1e9))
        24.064
    """
    products = loops = gathered = 0.0
    for layer, (k, d) in enumerate(pairwise(widths)):
        if layer == 0 and stored is not None:
            loops += 2 * (2 * stored * d)
        else:
            products += (2 if layer == 0 else 3) * (2 * nodes * k * d)
        loops += (7 + 17) * edges * d
        gathered += (4 + 8) * edges * d if 4 * nodes * d > cache else 0
    product_seconds = products / max(throughput.product, throughput.blas)
    return 1000 * (product_seconds + max(loops / throughput.loop, gathered / throughput.gather))


def last_level_cache() -> int:
    """Bytes of the last-level cache as the operating system reports it, or a usual size."""
    try:
        return 1024 * int(CACHE_SIZE_FILE.read_text().strip().removesuffix("K"))
    except (OSError, ValueError):
        return DEFAULT_CACHE


def throughput_timers(nodes: int, width: int) -> dict[str, tuple[Timer, float]]:
    """Return a timer for each field of :class:`Throughput`, with the flops or bytes of one repetition."""
    x, W, out = torch.randn(nodes, width), torch.randn(width, width), torch.empty(nodes, width)
    y, z = np.zeros(VECTOR_LENGTH, np.float32), np.ones(VECTOR_LENGTH, np.float32)
    table = np.ones((max(2 * last_level_cache() // (4 * GATHER_COLUMNS), 1), GATHER_COLUMNS), np.float32)
    rows = np.random.default_rng(0).integers(len(table), size=20_000 * GATHER_ROUNDS)
    total = np.zeros(GATHER_COLUMNS, np.float32)

    def product_timer(product: Callable[[], object]) -> tuple[Timer, float]:
        def repeat() -> None:
            for _ in range(PRODUCT_REPEATS):
                product()

        return make_timer(repeat), 2.0 * nodes * width * width * PRODUCT_REPEATS

    return {
        "product": product_timer(multiply_task(x, W, out)),
        "blas": product_timer(partial(torch.mm, x, W, out=out)),
        "loop": (make_timer(lambda: _add_scaled(y, z, LOOP_PASSES)), 2.0 * VECTOR_LENGTH * LOOP_PASSES),
        "gather": (make_timer(lambda: _sum_rows(table, rows, total)), 4.0 * GATHER_COLUMNS * len(rows)),
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
