"""Run a kernel over ranges of nodes, in parallel on as many threads as torch uses.

Where torch links GNU OpenMP, the ranges run on torch's own threads. Idle OpenMP threads spin-wait for a while; a second
thread pool would compete with them for the same cores and gain nothing on two cores.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.kernels.arguments import Edges
from equipoise.kernels.csr import CHUNK

MIN_PARALLEL_EDGES = 50_000  # below this, one thread finishes before a second one has started
MIN_PARALLEL_PRODUCT = 2**23  # multiplications of a matrix product, for the same reason
RANGES_PER_THREAD = 4  # a thread that is preempted leaves its remaining ranges to the others

Range = tuple[int, int]  # of nodes
Task = Callable[[], None]
Launcher = Callable[[Task, int], None]  # calls a task on a number of threads and waits for all of them


def split_nodes(ptr: NDArray[np.int64], count: int) -> list[tuple[int, int]]:
    """Split nodes into at most ``count`` ranges of whole chunks with about equal numbers of edges.

    Args:
        ptr: row pointers of the compressed edges.
        count: upper limit of the number of ranges.

    Returns:
        ``(lo, hi)`` of each range, in order.

    Example:
        >>> split_nodes(np.arange(0, 10_000, 10), 2)
        [(0, 512), (512, 999)]
    """
    nodes = len(ptr) - 1
    edge_quantiles = [ptr[-1] * k / count for k in range(1, count)]
    cuts = [0, *(round(int(cut) / CHUNK) * CHUNK for cut in np.searchsorted(ptr, edge_quantiles)), nodes]
    cuts = [min(cut, nodes) for cut in cuts]
    return [(lo, hi) for lo, hi in pairwise(cuts) if lo < hi] or [(0, nodes)]


def node_ranges(ptr: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges that :func:`run_kernel` uses: several per thread, or a single one for a small graph."""
    threads = torch.get_num_threads()
    if threads == 1 or ptr[-1] < MIN_PARALLEL_EDGES:
        return [(0, len(ptr) - 1)]
    return split_nodes(ptr, RANGES_PER_THREAD * threads)


def row_ranges(rows: int, row_size: int) -> list[tuple[int, int]]:
    """Ranges of rows of a matrix product that takes ``row_size`` multiplications per row."""
    threads = torch.get_num_threads()
    if threads == 1 or rows * row_size < MIN_PARALLEL_PRODUCT:
        return [(0, rows)]
    count = RANGES_PER_THREAD * threads
    return [(lo, hi) for lo, hi in pairwise(rows * k // count for k in range(count + 1)) if lo < hi]


def run_kernel(kernel: Callable[..., None], edges: Edges, *arguments: Any) -> None:
    """Call ``kernel(lo, hi, edges, *arguments)`` on ranges that cover all nodes.

    Args:
        kernel: writes to rows ``lo … hi`` only, so that ranges can run concurrently.
        edges: the edges, whose number decides on parallel execution.
        arguments: further arguments of the kernel.

    Raises:
        Exception: the first exception that a kernel raised, after all ranges have run.
    """
    run_ranges(kernel, node_ranges(edges.ptr), edges, *arguments)


def run_ranges(kernel: Callable[..., None], ranges: Sequence[Range], *arguments: Any) -> None:
    """Call ``kernel(lo, hi, *arguments)`` on given ranges, in parallel if torch uses several threads.

    Args:
        kernel: see :func:`run_kernel`.
        ranges: disjoint ranges of rows; of nodes, each of whole chunks.
        arguments: further arguments of the kernel.

    Raises:
        Exception: the first exception that a kernel raised, after all ranges have run.
    """
    if len(ranges) == 1 or torch.get_num_threads() == 1:
        for lo, hi in ranges:
            kernel(lo, hi, *arguments)
        return
    remaining, errors = iter(ranges), []

    def work() -> None:
        # Every free thread takes the next range, so all ranges run even if OpenMP starts fewer threads.
        for lo, hi in _take(remaining):
            try:
                kernel(lo, hi, *arguments)
            except Exception as error:
                errors.append(error)

    (_openmp_launcher() or _launch_in_pool)(work, torch.get_num_threads())
    if errors:
        raise errors[0]


def on_every_thread(task: Task) -> None:
    """Call a task once on each of torch's threads; without GNU OpenMP, on the current thread only."""
    launch, threads = _openmp_launcher(), torch.get_num_threads()
    if launch is None or threads == 1:
        task()
    else:
        launch(task, threads)


def _take(items: Iterator[Any]) -> Iterator[Any]:
    """Items of an iterator that several threads share."""
    while (item := next(items, None)) is not None:
        yield item


@cache
def _openmp_launcher() -> Launcher | None:
    """Launcher on torch's OpenMP threads; None where torch does not use GNU OpenMP, as on macOS."""
    try:
        mapped = Path("/proc/self/maps").read_text().split() if sys.platform == "linux" else []
        library = ctypes.CDLL(next(word for word in mapped if "libgomp" in Path(word).name))
    except (StopIteration, OSError):
        return None
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    library.GOMP_parallel.argtypes = [entry, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    library.GOMP_parallel.restype = None

    def launch(task: Task, threads: int) -> None:
        library.GOMP_parallel(entry(lambda _: task()), None, threads, 0)

    return launch


def _launch_in_pool(task: Task, threads: int) -> None:
    futures = [_pool(threads - 1).submit(task) for _ in range(threads - 1)]
    task()
    for future in futures:
        future.result()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="equipoise")
