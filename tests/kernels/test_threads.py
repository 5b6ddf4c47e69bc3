import numpy as np
import pytest
import torch

from equipoise.kernels import threads
from equipoise.kernels.threads import ranges, run


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
def test_ranges_are_all_nodes_once(count):
    ptr = np.cumsum([0, 5, 0, 0, 9, 1, 1, 0, 30, 2])
    parts = ranges(ptr, count)
    assert [node for lo, hi in parts for node in range(lo, hi)] == list(range(9))
    assert len(parts) <= count


def test_no_nodes_are_one_range():
    assert ranges(np.array([0]), 2) == [(0, 0)]


def test_runs_on_every_range_and_passes_errors_on(monkeypatch):
    monkeypatch.setattr(threads, "SMALL", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    ptr, seen = np.arange(10), []
    run(lambda lo, hi, ptr, value: seen.append((lo, hi, value)), ptr, "x")
    assert sorted(seen) == [(0, 3, "x"), (3, 6, "x"), (6, 9, "x")]

    def fails(lo, hi, ptr):
        if lo:
            raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        run(fails, ptr)
