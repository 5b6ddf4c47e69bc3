from dataclasses import asdict, replace

import pytest
import torch

from equipoise.bench.cases import Case
from equipoise.bench.report import EQUIPOISE, PYG
from equipoise.bench.worker import handle, measure_isolated, time_scaling

TINY = Case("tiny", layers=2, nodes=80, edges=320, features=6, width=8, rounds=1, epochs=2)


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_worker_uses_the_requested_number_of_threads():
    timing = handle({"task": "epochs", "cases": [asdict(replace(TINY, competitors=False))], "threads": 2})
    assert timing["threads"] == 2
    assert timing["roofline"] is None


def test_scaling_times_both_implementations():
    cases = [replace(TINY, name=str(edges), edges=edges) for edges in (100, 200)]
    medians = time_scaling(cases)
    assert [set(row) for row in medians] == [{EQUIPOISE, "PyG looped"}] * 2
    assert all(value > 0 for row in medians for value in row.values())


@pytest.mark.parametrize("implementation", [EQUIPOISE, PYG])
def test_isolated_run_measures_time_and_memory(implementation):
    run = measure_isolated(TINY, implementation)
    assert run.milliseconds > 0
    assert run.resident > run.peak >= 0
