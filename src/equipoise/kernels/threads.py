"""Kernels over ranges of nodes, as many at a time as torch has threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SMALL = 4096  # fewer edges than this are done before another thread has woken up


def ranges(ptr: NDArray[np.int64], threads: int) -> list[tuple[int, int]]:
    """The nodes in as many ranges as there are threads, with about as many edges each.

    Example:
        >>> ranges(np.array([0, 6, 7, 8, 12]), 2)
        [(0, 1), (1, 4)]
    """
    nodes = len(ptr) - 1
    goals = [ptr[-1] * part / threads for part in range(1, threads)]
    cuts = [0, *(int(cut) for cut in np.searchsorted(ptr, goals)), nodes]
    return [(lo, hi) for lo, hi in pairwise(cuts) if lo < hi] or [(0, nodes)]


def parts_of(ptr: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The ranges that :func:`run` works on: one a thread, or one alone where there is little to do."""
    return ranges(ptr, torch.get_num_threads() if ptr[-1] >= SMALL else 1)


def run(kernel: Callable[..., None], ptr: NDArray[np.int64], *arguments: Any) -> None:
    """Call ``kernel(lo, hi, ptr, *arguments)`` on ranges that together are all nodes."""
    parts = parts_of(ptr)
    if len(parts) == 1:
        kernel(*parts[0], ptr, *arguments)
        return
    waiting = [_pool(len(parts) - 1).submit(kernel, lo, hi, ptr, *arguments) for lo, hi in parts[1:]]
    kernel(*parts[0], ptr, *arguments)
    for part in waiting:
        part.result()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="equipoise")
