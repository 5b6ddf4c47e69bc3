"""Kernels over ranges of nodes, as many at a time as torch has threads.

Where torch brings GNU's OpenMP, the ranges run on torch's own threads. These wait for work by turning round and round
for a while; threads of another pool would compete with them for the same cores, and on two cores win nothing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.kernels.csr import CHUNK

SMALL = 50_000  # fewer edges than this are done before another thread has begun
SHARES = 4  # ranges a thread: one that is held up leaves the rest of its own to the others

Task = Callable[[], None]
Team = Callable[[Task, int], None]  # calls a task on so many threads at a time and waits for all


def ranges(ptr: NDArray[np.int64], count: int) -> list[tuple[int, int]]:
    """The nodes in so many ranges, of whole chunks, with about as many edges each.

    Example:
        >>> ranges(np.arange(0, 10_000, 10), 2)
        [(0, 512), (512, 999)]
    """
    nodes = len(ptr) - 1
    goals = [ptr[-1] * part / count for part in range(1, count)]
    cuts = [0, *(round(int(cut) / CHUNK) * CHUNK for cut in np.searchsorted(ptr, goals)), nodes]
    cuts = [min(cut, nodes) for cut in cuts]
    return [(lo, hi) for lo, hi in pairwise(cuts) if lo < hi] or [(0, nodes)]


def parts_of(ptr: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The ranges that :func:`run` works on: some for each thread, or one alone where there is little to do."""
    threads = torch.get_num_threads()
    return ranges(ptr, SHARES * threads) if threads > 1 and ptr[-1] >= SMALL else [(0, len(ptr) - 1)]


def run(kernel: Callable[..., None], ptr: NDArray[np.int64], *arguments: Any) -> None:
    """Call ``kernel(lo, hi, ptr, *arguments)`` on ranges that together are all nodes."""
    parts = parts_of(ptr)
    if len(parts) == 1:
        kernel(*parts[0], ptr, *arguments)
        return
    todo, errors = iter(parts), []

    def work() -> None:
        # Whoever is free takes the next range, so all are done, however many threads there are in the end.
        for lo, hi in _one_by_one(todo):
            try:
                kernel(lo, hi, ptr, *arguments)
            except Exception as error:
                errors.append(error)

    (_torch_team() or _own_team)(work, torch.get_num_threads())
    if errors:
        raise errors[0]


def on_every_thread(task: Task) -> None:
    """Call a task once on each of torch's threads; where these are not GNU's, on this one alone."""
    team, threads = _torch_team(), torch.get_num_threads()
    if team is None or threads == 1:
        task()
    else:
        team(task, threads)


def _one_by_one(items: Iterator[Any]) -> Iterator[Any]:
    while (item := next(items, None)) is not None:
        yield item


@cache
def _torch_team() -> Team | None:
    """Torch's threads; None where they are not GNU's, as on macOS."""
    try:
        loaded = Path("/proc/self/maps").read_text().split() if sys.platform == "linux" else []
        library = ctypes.CDLL(next(word for word in loaded if "libgomp" in Path(word).name))
    except (StopIteration, OSError):
        return None
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    library.GOMP_parallel.argtypes = [entry, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    library.GOMP_parallel.restype = None

    def team(task: Task, threads: int) -> None:
        library.GOMP_parallel(entry(lambda _: task()), None, threads, 0)

    return team


def _own_team(task: Task, threads: int) -> None:
    waiting = [_pool(threads - 1).submit(task) for _ in range(threads - 1)]
    task()
    for other in waiting:
        other.result()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="equipoise")
