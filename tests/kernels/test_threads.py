import numpy as np
import pytest
import torch

from equipoise.kernels import threads
from equipoise.kernels.csr import CHUNK
from equipoise.kernels.threads import ranges, run

HUBS = np.cumsum([0, *np.where(np.arange(20 * CHUNK) % 700 == 0, 900, 1)])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
def test_ranges_are_all_nodes_once_in_whole_chunks(count):
    parts = ranges(HUBS, count)
    assert [node for lo, hi in parts for node in range(lo, hi)] == list(range(20 * CHUNK))
    assert len(parts) <= count
    assert all(lo % CHUNK == 0 for lo, _ in parts)


def test_ranges_have_about_as_many_edges_each():
    edges = [HUBS[hi] - HUBS[lo] for lo, hi in ranges(HUBS, 4)]
    assert max(edges) < 1.3 * min(edges)


def test_no_nodes_are_one_range():
    assert ranges(np.array([0]), 2) == [(0, 0)]


@pytest.fixture(params=["torch", "own"])
def three_threads(request, monkeypatch):
    monkeypatch.setattr(threads, "SMALL", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    if request.param == "own":
        monkeypatch.setattr(threads, "_torch_team", lambda: None)
    elif threads._torch_team() is None:
        pytest.skip("torch's threads are not GNU's here")


@pytest.mark.usefixtures("three_threads")
def test_runs_on_every_range_and_passes_errors_on():
    ptr, seen = np.arange(36 * CHUNK + 1), []
    run(lambda lo, hi, ptr, value: seen.append((lo, hi, value)), ptr, "x")
    assert sorted(seen) == [(3 * part * CHUNK, 3 * (part + 1) * CHUNK, "x") for part in range(3 * threads.SHARES)]

    def fails(lo, hi, ptr):
        if lo:
            raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        run(fails, ptr)


@pytest.mark.usefixtures("three_threads")
def test_ranges_are_done_even_if_there_are_fewer_threads(monkeypatch):
    monkeypatch.setattr(threads, "_torch_team", lambda: lambda task, threads: task())
    seen = []
    run(lambda lo, hi, ptr: seen.append(lo), np.arange(9 * CHUNK + 1))
    assert len(seen) == 9
