"""Wall-clock time and peak memory: timers, interleaved rounds, and the process's resident high-water mark."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from equipoise.errors import MeasurementError

Timer = Callable[[int], list[float]]  # number of repetitions → milliseconds of each
Name = TypeVar("Name", bound=Hashable)

PROC_STATUS, PROC_CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def make_timer(action: Callable[[], object]) -> Timer:
    """Return a timer that repeats ``action``."""

    def run(repeats: int) -> list[float]:
        stamps = [time.perf_counter()]
        for _ in range(repeats):
            action()
            stamps.append(time.perf_counter())
        return intervals(stamps)

    return run


def intervals(stamps: list[float]) -> list[float]:
    """Milliseconds between consecutive time stamps in seconds.

    Args:
        stamps: Values of ``time.perf_counter()``.

    Returns:
        One interval fewer than there are stamps.

    Example:
        >>> intervals([1.0, 1.5, 3.5])
        [500.0, 2000.0]
    """
    return [1000 * (after - before) for before, after in pairwise(stamps)]


def interleave(timers: Mapping[Name, Timer], rounds: int, repeats: int) -> dict[Name, list[float]]:
    """Run all timers in alternation, so that a slow phase of the machine affects all of them.

    Args:
        timers: Timers by name.
        rounds: Rounds over all timers, after one warm-up round of a single repetition.
        repeats: Repetitions per timer and round.

    Returns:
        Milliseconds of every repetition, by name.
    """
    samples: dict[Name, list[float]] = {name: [] for name in timers}
    for timer in timers.values():
        timer(1)
    for _ in range(rounds):
        for name, timer in timers.items():
            samples[name] += timer(repeats)
    return samples


def reset_peak_memory() -> None:
    """Reset the high-water mark of resident memory; without effect where the operating system does not support it."""
    try:
        PROC_CLEAR_REFS.write_text("5")  # see proc(5)
    except OSError:
        return


def peak_memory() -> int:
    """Return the high-water mark of resident memory in bytes.

    On Linux, ``ru_maxrss`` includes the parent process before ``exec``, so ``VmHWM`` of ``/proc/self/status`` is read
    instead.

    Returns:
        Bytes since the process started, or since :func:`reset_peak_memory` where that is supported.

    Raises:
        MeasurementError: If the operating system does not report it.
    """
    if PROC_STATUS.exists():
        match = re.search(r"^VmHWM:\s+(\d+) kB$", PROC_STATUS.read_text(), re.MULTILINE)
        if match:
            return 1024 * int(match[1])
    try:
        import resource
    except ImportError as error:
        raise MeasurementError("this operating system does not report the peak memory of a process") from error
    maxrss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return maxrss if sys.platform == "darwin" else 1024 * maxrss
