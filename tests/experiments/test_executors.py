"""The contract of executors, tested for each of them."""

import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.experiments.executors import available_cores, process_executor
from equipoise.experiments.ray_executor import ray_executor
from equipoise.experiments.result import Result, failed_result
from equipoise.experiments.run import run
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.worker import OOM_SCORE_ADJ
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


def test_run_that_always_kills_its_process_fails(executor, tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.experiments.executors.MAX_KILLS", 2)
    specs = SPECS[1:3]
    results = [event for event in executor(specs, KillingRun(tmp_path, seed=1)) if isinstance(event, Result)]
    outcomes = {result.spec.seed: result for result in results}
    assert (outcomes[0].outcome, outcomes[1].outcome) == ("finished", "failed")
    assert len(list(tmp_path.iterdir())) == 2
    assert "SIGKILL from outside, 2 times" in outcomes[1].reason or "WorkerCrashedError" in outcomes[1].reason


def report_threads(spec: RunSpec) -> Result:
    return failed_result(spec, f"{torch.get_num_threads()} {os.environ['OMP_NUM_THREADS']} {os.getpid()}")


def test_runs_use_one_thread_in_another_process(executor):
    reasons = [event.reason.split() for event in executor(SPECS, report_threads) if isinstance(event, Result)]
    assert {tuple(reason[:2]) for reason in reasons} == {("1", "1")}
    assert str(os.getpid()) not in {reason[2] for reason in reasons}


def faulty_run(spec: RunSpec) -> Result:
    """Each seed has its own way to end its process, again and again."""
    if spec.seed == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    elif spec.seed == 2:
        block = np.ones(100_000_000)  # 0.8 GB, really written
        time.sleep(1.5)  # the parent measures the memory
        os.kill(os.getpid(), signal.SIGKILL if block.any() else 0)
    elif spec.seed == 3:
        time.sleep(600)
    return failed_result(spec, "done")


def test_crash_and_memory_are_told_apart(monkeypatch, caplog):
    """The machine's memory is stated as 2 GB, so that a process of 1.2 GB is near the limit."""
    monkeypatch.setattr("equipoise.experiments.executors.memory_limit", lambda: 2 * 10**9)
    specs = [replace(SPECS[0], seed=seed) for seed in range(3)]
    too_large = replace(SPECS[0], width=100_000_000)
    events = list(process_executor(2)([*specs, too_large], faulty_run))
    reasons = {event.spec: event.reason for event in events if isinstance(event, Result)}
    assert len(reasons) == 4
    assert reasons[specs[0]] == "done"
    assert reasons[specs[1]] == "the process was killed by SIGSEGV, 2 times"
    assert reasons[specs[2]].startswith("out of memory: the process was killed with 1.")
    assert reasons[specs[2]].endswith(" of 2 GB in use, 2 times")
    assert "seed 2: out of memory" in caplog.text
    assert "the run is repeated without others beside it" in caplog.text
    assert reasons[too_large].startswith("out of memory: the run needs about")
    assert [event for event in events if event == too_large] == [too_large], "refused before it starts a process"
    second = len(events) - 1 - events[::-1].index(specs[2])  # while the run is alone, no other one starts or ends
    assert isinstance(events[second + 1], Result)
    assert events[second + 1].spec == specs[2]


@dataclass(frozen=True)
class KilledOnce:
    """Waits for the other seed, uses memory (seed 1 more than seed 0) and ends its process, on its first attempt."""

    folder: Path

    def __call__(self, spec: RunSpec) -> Result:
        if (marker := self.folder / f"started-{spec.seed}").exists():
            return failed_result(spec, "done")
        marker.touch()
        while len(list(self.folder.glob("started-*"))) < 2:
            time.sleep(0.01)
        block = np.ones(spec.seed * 20_000_000)
        time.sleep(1.5)  # the parent measures the memory
        (self.folder / f"killed-{spec.seed}-{block.size}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.mark.parametrize(("counted", "to_blame"), [(0, []), (1, [1]), (2, [0, 1])])
def test_kernel_count_tells_who_ran_out_of_memory(tmp_path, monkeypatch, caplog, counted, to_blame):
    """Two small processes die together; the kernel's count contains none, one or both of them."""

    def killed() -> int:
        return len(list(tmp_path.glob("killed-*")))

    def wait_for_both(pipes, timeout):
        ready = wait(pipes, timeout)
        if killed():
            time.sleep(1.0)
            return wait(pipes, 0.5)
        return ready

    monkeypatch.setattr("equipoise.experiments.executors.wait", wait_for_both)
    monkeypatch.setattr("equipoise.experiments.executors.out_of_memory_kills", lambda: counted * bool(killed()))
    specs = [replace(SPECS[0], seed=seed) for seed in range(2)]
    events = list(process_executor(2)(specs, KilledOnce(tmp_path)))
    assert [event.reason for event in events if isinstance(event, Result)] == ["done", "done"]
    blamed = [seed for seed in range(2) if f"seed {seed}: out of memory" in caplog.text]
    others = [
        seed for seed in range(2) if f"seed {seed}: the process was killed by SIGKILL from outside" in caplog.text
    ]
    assert (blamed, others) == (to_blame, [seed for seed in range(2) if seed not in to_blame])


@pytest.mark.skipif(sys.platform != "linux", reason="a file of Linux")
def test_memory_killer_prefers_workers():
    before = multiprocessing.active_children()
    events = process_executor(1, run_timeout=60)(SPECS, sleep)
    next(events)
    (process,) = (child for child in multiprocessing.active_children() if child not in before)
    file, end = Path(f"/proc/{process.pid}/oom_score_adj"), time.monotonic() + 60
    while int(file.read_text()) != OOM_SCORE_ADJ and time.monotonic() < end:
        time.sleep(0.1)
    assert int(file.read_text()) == OOM_SCORE_ADJ > int(Path("/proc/self/oom_score_adj").read_text())
    events.close()


def test_run_that_hangs_reaches_the_time_limit():
    hanging, other = (replace(SPECS[0], seed=seed) for seed in (3, 0))
    events = list(process_executor(1, run_timeout=1.0)([hanging, other], faulty_run))
    assert events[::2] == [hanging, other]
    assert events[1].outcome == "failed"
    assert events[1].reason == "time limit: not finished after 1 s (--run-timeout)"
    assert events[3].reason == "done"


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
