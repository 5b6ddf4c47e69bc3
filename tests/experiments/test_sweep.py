import threading
from dataclasses import replace

import pytest

from equipoise.errors import MissingDataError
from equipoise.experiments.checkpoint import Checkpoint
from equipoise.experiments.cost import relative_cost
from equipoise.experiments.executors import process_executor
from equipoise.experiments.recording_plan import RecordingPlan
from equipoise.experiments.result import failed_result
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from equipoise.experiments.sweep import SweepCallback, checkpoint_folder, is_locked, missing_runs, sweep, sweep_lock
from tests.experiments.workloads import SPECS, equal_results, serial_executor, spec


class LogCallback(SweepCallback):
    def __init__(self):
        self.todo, self.started, self.ended, self.messages = [], [], [], []

    def on_wait(self, message):
        self.messages.append(message)

    def on_sweep_start(self, todo):
        self.todo = list(todo)

    def on_run_start(self, spec):
        self.started.append(spec)

    def on_run_end(self, result):
        self.ended.append(result)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "results.sqlite") as opened:
        yield opened


def test_executes_only_missing_runs(store):
    done = run(SPECS[0])
    store.put(done)
    log = LogCallback()
    results = sweep([*SPECS, *SPECS], store, serial_executor, log)
    assert log.started == log.todo == [result.spec for result in results] == [result.spec for result in log.ended]
    assert sorted(spec.key for spec in log.started) == sorted(spec.key for spec in SPECS[1:])
    stored = store.results(curves=True)
    assert all(equal_results(stored[spec.key], run(spec)) for spec in SPECS)
    assert stored[done.key].when == done.when
    again = LogCallback()
    assert sweep(SPECS, store, serial_executor, again) == []
    assert (again.todo, again.started) == ([], [])


def test_expensive_runs_come_first(store):
    specs = [spec(depth=depth, epochs=epochs) for depth, epochs in ((2, 1), (2, 3), (6, 1), (4, 2))]
    log = LogCallback()
    sweep(specs, store, serial_executor, log)
    costs = [relative_cost(one) for one in log.started]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == 4


def test_retry_repeats_failed_and_diverged_runs(store):
    good, diverging, failing = spec(), spec(lr=1e12, epochs=40), spec(width=7, init="bal-o")
    sweep([good, diverging, failing], store, serial_executor)
    assert store.outcomes() == {good.key: "finished", diverging.key: "diverged", failing.key: "failed"}
    assert not missing_runs([good, diverging, failing], store.outcomes())
    store.put(failed_result(good, "out of memory"))
    log = LogCallback()
    sweep([good, diverging, failing], store, serial_executor, log, retry=True)
    assert {one.key for one in log.started} == {good.key, diverging.key, failing.key}
    assert store.outcomes()[good.key] == "finished"


def test_resumes_from_a_checkpoint_and_removes_it(store):
    one = spec(epochs=30, init="bal-o")
    folder = checkpoint_folder(store.path)
    first = run(one)
    path = folder / f"{one.key}.pt"

    class InterruptedCheckpoint(Checkpoint):
        def save_if_due(self, state):
            if len(state().history["loss"]) == 20:
                self.save(state())
                raise RuntimeError("killed")

    run(one, InterruptedCheckpoint(path, one.key))
    assert path.exists()
    saved_epochs = []

    def observing_executor(specs, run_function):
        yield from specs
        saved_epochs.append(len(Checkpoint(path, one.key).load().history["loss"]))
        yield run_function(one)

    sweep([one], store, observing_executor)
    assert saved_epochs == [20]
    assert equal_results(store.results(curves=True)[one.key], first)
    assert not folder.exists()


def test_removes_stale_checkpoints_and_keeps_others(store):
    folder = checkpoint_folder(store.path)
    folder.mkdir()
    store.put(run(SPECS[0]))
    for name in (f"{SPECS[0].key}.pt", f"{SPECS[1].key}.77.tmp", "another.pt"):
        (folder / name).write_bytes(b"x")
    sweep(SPECS[:2], store, serial_executor)
    assert [file.name for file in folder.iterdir()] == ["another.pt"]


def test_missing_data_raises_before_the_first_run(store, monkeypatch, tmp_path):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    with pytest.raises(MissingDataError):
        sweep([replace(SPECS[0], dataset="cora")], store, serial_executor)
    assert not is_locked(store.path)


def test_second_sweep_waits_and_finds_the_runs_completed(store):
    """Two simultaneous sweeps over the same runs: each run is executed once."""
    logs, started, released = [LogCallback(), LogCallback()], threading.Event(), threading.Event()

    def pausing_executor(specs, run_function):
        yield from serial_executor(specs[:1], run_function)
        started.set()
        assert released.wait(30)
        yield from serial_executor(specs[1:], run_function)

    def first():
        with Store(store.path) as own:
            sweep(SPECS, own, pausing_executor, logs[0])

    def second():
        with Store(store.path) as own:
            sweep(SPECS, own, serial_executor, logs[1])

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert started.wait(30)
    assert is_locked(store.path)
    assert store.running().keys() < {spec.key for spec in SPECS}
    threads[1].start()
    while not logs[1].messages:
        threads[1].join(0.01)
    assert "process" in logs[1].messages[0]
    assert "is running a sweep on" in logs[1].messages[0]
    released.set()
    for thread in threads:
        thread.join(60)
    assert len(logs[0].ended) == len(SPECS)
    assert logs[1].ended == logs[1].todo == []
    assert len(store.outcomes()) == len(SPECS)
    assert not is_locked(store.path)


def test_lock_clears_the_runs_of_a_killed_sweep(store):
    store.set_lock_owner(1, "elsewhere")
    store.mark_running("a key")
    assert not is_locked(store.path)
    with sweep_lock(store, print):
        assert is_locked(store.path)
        assert not store.running()


def test_run_without_the_wanted_recording_is_repeated(store):
    plans = {one.key: RecordingPlan(2, ("gradient",)) for one in SPECS[:3]}
    for one in SPECS[:2]:
        store.put(run(one))
    store.put(failed_result(SPECS[2], "out of memory"))
    log = LogCallback()
    sweep(SPECS, store, serial_executor, log, recording_plans=plans)
    assert {one.key for one in log.started} == {SPECS[0].key, SPECS[1].key, SPECS[3].key}
    assert store.recording_plans().keys() == {SPECS[0].key, SPECS[1].key}
    assert equal_results(store.results(curves=True)[SPECS[0].key], run(SPECS[0]))
    assert sweep(SPECS, store, serial_executor, recording_plans=plans) == []
    finer = {SPECS[0].key: RecordingPlan(1, ("gradient", "update"))}
    assert [result.key for result in sweep(SPECS, store, serial_executor, recording_plans=finer)] == [SPECS[0].key]


def test_recordings_come_from_worker_processes(store):
    (result,) = sweep(
        SPECS[:1], store, process_executor(1), recording_plans={SPECS[0].key: RecordingPlan(1, ("gradient",))}
    )
    assert result.recording.unpack().frame().epoch.nunique() == 6
