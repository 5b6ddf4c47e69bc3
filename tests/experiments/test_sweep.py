import threading
from dataclasses import replace

import pytest

from equipoise.errors import MissingDataError
from equipoise.experiments.checkpoint import Checkpoint
from equipoise.experiments.cost import work
from equipoise.experiments.driver import driven, driving
from equipoise.experiments.executors import processes
from equipoise.experiments.result import failed
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from equipoise.experiments.sweep import Watcher, checkpoint_folder, missing, sweep
from equipoise.experiments.watch import Watch
from tests.experiments.workloads import SPECS, here, same, spec


class Log(Watcher):
    def __init__(self):
        self.todo, self.started, self.ended, self.waited = [], [], [], []

    def waits(self, message):
        self.waited.append(message)

    def begins(self, todo):
        self.todo = list(todo)

    def starts(self, spec):
        self.started.append(spec)

    def ends(self, result):
        self.ended.append(result)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "results.sqlite") as opened:
        yield opened


def test_does_what_is_missing_and_nothing_twice(store):
    done = run(SPECS[0])
    store.put(done)
    log = Log()
    results = sweep([*SPECS, *SPECS], store, here, log)
    assert log.started == log.todo == [result.spec for result in results] == [result.spec for result in log.ended]
    assert sorted(spec.key for spec in log.started) == sorted(spec.key for spec in SPECS[1:])
    kept = store.results(curves=True)
    assert all(same(kept[spec.key], run(spec)) for spec in SPECS)
    assert kept[done.key].when == done.when
    again = Log()
    assert sweep(SPECS, store, here, again) == []
    assert (again.todo, again.started) == ([], [])


def test_long_runs_first(store):
    specs = [spec(depth=depth, epochs=epochs) for depth, epochs in ((2, 1), (2, 3), (6, 1), (4, 2))]
    log = Log()
    sweep(specs, store, here, log)
    sizes = [work(one) for one in log.started]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_failed_and_diverged_runs_are_done_again_where_asked_for(store):
    good, diverging, failing = spec(), spec(lr=1e12, epochs=40), spec(width=7, init="bal-o")
    sweep([good, diverging, failing], store, here)
    assert store.outcomes() == {good.key: "finished", diverging.key: "diverged", failing.key: "failed"}
    assert not missing([good, diverging, failing], store.outcomes())
    store.put(failed(good, "no memory"))
    log = Log()
    sweep([good, diverging, failing], store, here, log, retry=True)
    assert {one.key for one in log.started} == {good.key, diverging.key, failing.key}
    assert store.outcomes()[good.key] == "finished"


def test_goes_on_from_a_checkpoint_and_removes_it(store):
    one = spec(epochs=30, init="bal-o")
    folder = checkpoint_folder(store.path)
    first = run(one)
    path = folder / f"{one.key}.pt"

    class Cut(Checkpoint):
        def offer(self, state):
            if len(state().history["loss"]) == 20:
                self.save(state())
                raise RuntimeError("killed")

    run(one, Cut(path, one.key))
    assert path.exists()
    resumed = []

    def watched(specs, given):
        yield from specs
        resumed.append(len(Checkpoint(path, one.key).load().history["loss"]))
        yield given(one)

    sweep([one], store, watched)
    assert resumed == [20]
    assert same(store.results(curves=True)[one.key], first)
    assert not folder.exists()


def test_tidies_up_after_a_driver_that_was_killed_but_keeps_other_checkpoints(store):
    folder = checkpoint_folder(store.path)
    folder.mkdir()
    store.put(run(SPECS[0]))
    for name in (f"{SPECS[0].key}.pt", f"{SPECS[1].key}.77.tmp", "another.pt"):
        (folder / name).write_bytes(b"x")
    sweep(SPECS[:2], store, here)
    assert [file.name for file in folder.iterdir()] == ["another.pt"]


def test_missing_data_is_said_before_any_run(store, monkeypatch, tmp_path):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    with pytest.raises(MissingDataError):
        sweep([replace(SPECS[0], dataset="cora")], store, here)
    assert not driven(store.path)


def test_the_second_driver_waits_and_finds_the_work_done(store):
    """Two sweeps over the same runs at once: each run is done by one of them."""
    logs, inside, go_on = [Log(), Log()], threading.Event(), threading.Event()

    def slow(specs, work):
        yield from here(specs[:1], work)
        inside.set()
        assert go_on.wait(30)
        yield from here(specs[1:], work)

    def first():
        with Store(store.path) as own:
            sweep(SPECS, own, slow, logs[0])

    def second():
        with Store(store.path) as own:
            sweep(SPECS, own, here, logs[1])

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(30)
    assert driven(store.path)
    assert store.running().keys() < {spec.key for spec in SPECS}
    threads[1].start()
    while not logs[1].waited:
        threads[1].join(0.01)
    assert "process" in logs[1].waited[0]
    assert "is running a sweep on" in logs[1].waited[0]
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(logs[0].ended) == len(SPECS)
    assert logs[1].ended == logs[1].todo == []
    assert len(store.outcomes()) == len(SPECS)
    assert not driven(store.path)


def test_what_a_dead_driver_was_running_is_not_running_any_more(store):
    store.note_driver(1, "elsewhere")
    store.note_running("a key")
    assert not driven(store.path)
    with driving(store, print):
        assert driven(store.path)
        assert not store.running()


def test_a_run_without_the_wanted_recording_is_done_again(store):
    watch = {one.key: Watch(2, ("gradient",)) for one in SPECS[:3]}
    for one in SPECS[:2]:
        store.put(run(one))
    store.put(failed(SPECS[2], "no memory"))
    log = Log()
    sweep(SPECS, store, here, log, watch=watch)
    assert {one.key for one in log.started} == {SPECS[0].key, SPECS[1].key, SPECS[3].key}
    assert store.recorded().keys() == {SPECS[0].key, SPECS[1].key}
    assert same(store.results(curves=True)[SPECS[0].key], run(SPECS[0]))
    assert sweep(SPECS, store, here, watch=watch) == []
    finer = {SPECS[0].key: Watch(1, ("gradient", "update"))}
    assert [result.key for result in sweep(SPECS, store, here, watch=finer)] == [SPECS[0].key]


def test_recordings_come_from_other_processes(store):
    (result,) = sweep(SPECS[:1], store, processes(1), watch={SPECS[0].key: Watch(1, ("gradient",))})
    assert result.recording.unpack().frame().epoch.nunique() == 6
