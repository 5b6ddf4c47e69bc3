"""One contract, for every executor."""

import os
import signal
import time

import pytest
import torch

from equipoise.experiments.executors import cores, processes
from equipoise.experiments.ray_executor import ray_tasks
from equipoise.experiments.result import Result, failed
from equipoise.experiments.run import run
from equipoise.experiments.spec import RunSpec
from tests.experiments.workloads import SPECS, Deadly, same


@pytest.fixture(params=["processes", pytest.param("ray", marks=pytest.mark.slow)])  # test_ray.py has Ray in short
def executor(request):
    if request.param == "processes":
        return processes(2)
    return ray_tasks(request.getfixturevalue("ray_cluster").address, retries=1)


def test_every_spec_starts_and_has_its_result(executor):
    news = list(executor(SPECS, run))
    results = {one.key: one for one in news if isinstance(one, Result)}
    assert sorted(results) == sorted(spec.key for spec in SPECS)
    assert len(news) == 2 * len(SPECS)
    for spec in SPECS:
        assert news.index(spec) < news.index(results[spec.key])
        assert same(results[spec.key], run(spec))


def test_nothing_to_do(executor):
    assert not list(executor([], run))


def test_a_worker_that_dies_costs_a_retry(executor, tmp_path):
    results = [one for one in executor(SPECS, Deadly(tmp_path, seed=1, times=1)) if isinstance(one, Result)]
    assert len(list(tmp_path.iterdir())) == 1
    assert {result.key: result.outcome for result in results} == {spec.key: "finished" for spec in SPECS}


def test_a_run_that_always_kills_its_worker_fails(executor, tmp_path):
    specs = SPECS[1:3]
    results = [one for one in executor(specs, Deadly(tmp_path, seed=1)) if isinstance(one, Result)]
    outcomes = {result.spec.seed: result for result in results}
    assert (outcomes[0].outcome, outcomes[1].outcome) == ("finished", "failed")
    assert len(list(tmp_path.iterdir())) == 2
    assert "SIGKILL, 2 times" in outcomes[1].reason or "WorkerCrashedError" in outcomes[1].reason


def threads(spec: RunSpec) -> Result:
    return failed(spec, f"{torch.get_num_threads()} {os.environ['OMP_NUM_THREADS']} {os.getpid()}")


def test_one_thread_and_another_process(executor):
    reasons = [one.reason.split() for one in executor(SPECS, threads) if isinstance(one, Result)]
    assert {tuple(reason[:2]) for reason in reasons} == {("1", "1")}
    assert str(os.getpid()) not in {reason[2] for reason in reasons}


def sleeps(spec: RunSpec) -> Result:
    time.sleep(60)
    return failed(spec, "slept")


def test_closing_ends_the_processes():
    news = processes(1)(SPECS, sleeps)
    next(news)
    (worker,) = news.gi_frame.f_locals["workers"]
    assert worker.process.is_alive()
    news.close()
    assert worker.process.exitcode == -signal.SIGTERM


def test_no_more_processes_than_runs():
    news = processes(8)(SPECS[:1], sleeps)
    next(news)
    assert len(news.gi_frame.f_locals["workers"]) == 1
    news.close()


def test_cores_are_ours():
    assert 1 <= cores() <= os.cpu_count()
