"""Milliseconds: something done so many times, several such things in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from itertools import pairwise
from typing import TypeVar

Clock = Callable[[int], list[float]]  # do it so many times; how many milliseconds each took
Name = TypeVar("Name", bound=Hashable)


def clock(action: Callable[[], object]) -> Clock:
    """Times an action."""

    def run(times: int) -> list[float]:
        stamps = [time.perf_counter()]
        for _ in range(times):
            action()
            stamps.append(time.perf_counter())
        return intervals(stamps)

    return run


def intervals(stamps: list[float]) -> list[float]:
    """From one stamp in seconds to the next, in milliseconds.

    Example:
        >>> intervals([1.0, 1.5, 3.5])
        [500.0, 2000.0]
    """
    return [1000 * (after - before) for before, after in pairwise(stamps)]


def interleave(clocks: Mapping[Name, Clock], rounds: int, times: int) -> dict[Name, list[float]]:
    """All of them in turns, so that a slow moment of the machine meets all; a first round does not count."""
    samples: dict[Name, list[float]] = {name: [] for name in clocks}
    for round_ in range(rounds + 1):
        for name, run in clocks.items():
            taken = run(times if round_ else 1)
            samples[name] += taken if round_ else []
    return samples
