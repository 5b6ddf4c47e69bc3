"""The contract of executors, tested for each of them."""

import multiprocessing
import os
import signal
import time

import pytest
import torch

from equipoise.experiments.executors import available_cores, process_executor
from equipoise.experiments.ray_executor import ray_executor
from equipoise.experiments.result import Result, failed_result
from equipoise.experiments.run import run
from equipoise.experiments.spec import RunSpec
from tests.experiments.workloads import SPECS, KillingRun, equal_results


@pytest.fixture(params=["processes", pytest.param("ray", marks=pytest.mark.slow)])  # test_ray_executor.py is fast
def executor(request):
    if request.param == "processes":
        return process_executor(2)
    return ray_executor(request.getfixturevalue("ray_cluster").address, retries=1)


def test_every_spec_starts_and_has_one_result(executor):
    events = list(executor(SPECS, run))
    results = {event.key: event for event in events if isinstance(event, Result)}
    assert sorted(results) == sorted(spec.key for spec in SPECS)
    assert len(events) == 2 * len(SPECS)
    for spec in SPECS:
        assert events.index(spec) < events.index(results[spec.key])
        assert equal_results(results[spec.key], run(spec))


def test_no_specs(executor):
    assert not list(executor([], run))


def test_run_is_repeated_when_its_process_dies(executor, tmp_path):
    results = [event for event in executor(SPECS, KillingRun(tmp_path, seed=1, times=1)) if isinstance(event, Result)]
    assert len(list(tmp_path.iterdir())) == 1
    assert {result.key: result.outcome for result in results} == {spec.key: "finished" for spec in SPECS}


def test_run_that_always_kills_its_process_fails(executor, tmp_path):
    specs = SPECS[1:3]
    results = [event for event in executor(specs, KillingRun(tmp_path, seed=1)) if isinstance(event, Result)]
    outcomes = {result.spec.seed: result for result in results}
    assert (outcomes[0].outcome, outcomes[1].outcome) == ("finished", "failed")
    assert len(list(tmp_path.iterdir())) == 2
    assert "SIGKILL, 2 times" in outcomes[1].reason or "WorkerCrashedError" in outcomes[1].reason


def report_threads(spec: RunSpec) -> Result:
    return failed_result(spec, f"{torch.get_num_threads()} {os.environ['OMP_NUM_THREADS']} {os.getpid()}")


def test_runs_use_one_thread_in_another_process(executor):
    reasons = [event.reason.split() for event in executor(SPECS, report_threads) if isinstance(event, Result)]
    assert {tuple(reason[:2]) for reason in reasons} == {("1", "1")}
    assert str(os.getpid()) not in {reason[2] for reason in reasons}


def sleep(spec: RunSpec) -> Result:
    time.sleep(60)
    return failed_result(spec, "slept")


def test_closing_the_generator_terminates_its_processes():
    before = multiprocessing.active_children()
    events = process_executor(1)(SPECS, sleep)
    next(events)
    (process,) = (child for child in multiprocessing.active_children() if child not in before)
    assert process.is_alive()
    events.close()
    assert process.exitcode == -signal.SIGTERM


def test_no_more_processes_than_runs():
    before = multiprocessing.active_children()
    events = process_executor(8)(SPECS[:1], sleep)
    next(events)
    assert len(multiprocessing.active_children()) == len(before) + 1
    events.close()


def test_available_cores():
    assert 1 <= available_cores() <= os.cpu_count()
