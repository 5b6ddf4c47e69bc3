import numpy as np
import pytest
import torch

from equipoise.kernels import threads
from equipoise.kernels.arguments import Edges
from equipoise.kernels.csr import CHUNK
from equipoise.kernels.threads import run_kernel, split_nodes

PTR_WITH_HUBS = np.cumsum([0, *np.where(np.arange(20 * CHUNK) % 700 == 0, 900, 1)])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
def test_ranges_cover_all_nodes_in_whole_chunks(count):
    ranges = split_nodes(PTR_WITH_HUBS, count)
    assert [node for lo, hi in ranges for node in range(lo, hi)] == list(range(20 * CHUNK))
    assert len(ranges) <= count
    assert all(lo % CHUNK == 0 for lo, _ in ranges)


def test_ranges_have_about_equal_numbers_of_edges():
    edges = [PTR_WITH_HUBS[hi] - PTR_WITH_HUBS[lo] for lo, hi in split_nodes(PTR_WITH_HUBS, 4)]
    assert max(edges) < 1.3 * min(edges)


def test_an_empty_graph_is_one_range():
    assert split_nodes(np.array([0]), 2) == [(0, 0)]


def edges_with_degree_one(nodes):
    return Edges(np.arange(nodes + 1), np.arange(nodes), np.empty(0, int), np.arange(nodes))


@pytest.fixture(params=["openmp", "pool"])
def three_threads(request, monkeypatch):
    monkeypatch.setattr(threads, "MIN_PARALLEL_EDGES", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    if request.param == "pool":
        monkeypatch.setattr(threads, "_openmp_launcher", lambda: None)
    elif threads._openmp_launcher() is None:
        pytest.skip("torch does not use GNU OpenMP here")


@pytest.mark.usefixtures("three_threads")
def test_runs_on_every_range_and_raises_errors():
    edges, calls = edges_with_degree_one(36 * CHUNK), []
    run_kernel(lambda lo, hi, edges, value: calls.append((lo, hi, value)), edges, "x")
    assert sorted(calls) == [(3 * i * CHUNK, 3 * (i + 1) * CHUNK, "x") for i in range(3 * threads.RANGES_PER_THREAD)]

    def failing_kernel(lo, hi, edges):
        if lo:
            raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        run_kernel(failing_kernel, edges)


@pytest.mark.usefixtures("three_threads")
def test_all_ranges_run_even_on_fewer_threads(monkeypatch):
    monkeypatch.setattr(threads, "_openmp_launcher", lambda: lambda task, threads: task())
    calls = []
    run_kernel(lambda lo, hi, edges: calls.append(lo), edges_with_degree_one(9 * CHUNK))
    assert len(calls) == 9
