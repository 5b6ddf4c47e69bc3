"""Stores with flipped bytes, truncated files and full disks: noticed and salvaged, never used in silence."""

import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from equipoise.errors import StoreError
from equipoise.experiments.recording_plan import RecordingPlan
from equipoise.experiments.result import Result
from equipoise.experiments.run import run
from equipoise.experiments.schema import VERSION
from equipoise.experiments.store import Store
from equipoise.experiments.store_repair import check_store, repair_store
from equipoise.experiments.sweep import SweepCallback, store_lock, sweep
from tests.experiments.workloads import SPECS, equal_results, serial_executor, spec

RUNS = 40


@pytest.fixture(scope="module")
def results():
    """Forty results with noise as curves, every tenth with a recording."""
    noise = np.random.default_rng(0)
    recording = run(SPECS[0], recording_plan=RecordingPlan(2, ("gradient",))).recording
    return {
        one.key: Result(
            spec=one,
            outcome="finished",
            test_accuracy=noise.random(),
            val_accuracy=noise.random(),
            best_epoch=7,
            epochs=60,
            curves={name: noise.random(60, dtype=np.float32) for name in ("loss", "val_accuracy", "test_accuracy")},
            recording=recording if seed % 10 == 0 else None,
        ).with_environment()
        for seed in range(RUNS)
        for one in [spec(seed=seed)]
    }


@pytest.fixture(scope="module")
def intact(tmp_path_factory, results):
    path = tmp_path_factory.mktemp("store") / "results.sqlite"
    with Store(path) as store:
        store.merge(results.values())
    return path


@pytest.fixture
def path(intact, tmp_path):
    return Path(shutil.copy(intact, tmp_path))


def equal(a, b):
    return equal_results(a, b) and a == b and a.recording == b.recording


def read_all(path, keys):
    """Every way to read a store; raises a StoreError if it notices damage."""
    with Store(path, read_only=True) as store:
        found = store.results(curves=True, recordings=True)
        assert store.outcomes() == {key: result.outcome for key, result in found.items()}
        for key in keys:
            assert store.curves(key).keys() == found[key].curves.keys()
            assert store.recording(key) == found[key].recording
    return found


@pytest.mark.parametrize("flips", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_flipped_bytes_never_change_a_result_in_silence(path, results, flips):
    """One to eight flipped bytes at random places: the same results, or an error; and repairing loses few of them."""
    content, places, refused, salvaged = path.read_bytes(), random.Random(0), 0, []
    for _ in range(flips):
        damaged = bytearray(content)
        start = places.randrange(len(content))
        for position in range(start, min(start + places.choice((1, 1, 8)), len(content))):
            damaged[position] ^= places.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            found = read_all(path, results)
            message = ""
        except StoreError as error:
            message = str(error)
        if not message:
            assert found.keys() == results.keys()
            assert all(equal(found[key], result) for key, result in results.items())
            continue
        refused += 1
        if start >= 4096:  # the first page has SQLite's header and the list of tables; without it nothing is readable
            assert "remedy" in message
            assert check_store(path).problems, f"unnoticed by check: {message}"
            salvage, aside = repair_store(path)
            assert aside.read_bytes() == damaged
            after = read_all(path, salvage.results)
            assert not check_store(path).problems
            assert all(after[key] == results[key] for key in after), "salvaged rows are right"
            salvaged.append(len(after))
            aside.unlink()
        for file in path.parent.glob("results.sqlite-*"):
            file.unlink()
    assert refused > flips // 2, "most bytes of this file matter"
    assert np.median(salvaged) >= RUNS - 1


@pytest.mark.parametrize("fraction", [0.55, 0.8, 0.99])
def test_truncated_store_is_refused_and_salvaged(path, results, fraction):
    content = path.read_bytes()
    path.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(StoreError, match=r"damaged(.|\n)*store repair"):
        read_all(path, results)
    salvage, aside = repair_store(path)
    found = read_all(path, salvage.results)
    assert aside.name == "results.sqlite.damaged"
    assert 0 < len(found) <= RUNS
    assert all(found[key] == results[key] for key in found)


@pytest.fixture
def half_transferred(tmp_path, results):
    """A full disk or a kill ended the transfer of the write-ahead log after the first page of the file."""
    source, path = tmp_path / "source.sqlite", tmp_path / "results.sqlite"
    with Store(source) as store:
        store.merge(results.values())
        shutil.copy(f"{source}-wal", f"{path}-wal")
    path.write_bytes(source.read_bytes()[:4096])
    return path


def test_pages_in_the_log_are_not_missing(half_transferred, results):
    salvage = check_store(half_transferred)
    assert not salvage.problems
    assert salvage.results.keys() == results.keys()
    assert repair_store(half_transferred)[1] is None
    assert all(equal(read_all(half_transferred, results)[key], result) for key, result in results.items())


def test_pages_in_neither_file_nor_log_are_found(half_transferred, results):
    log = Path(f"{half_transferred}-wal")
    os.truncate(log, log.stat().st_size // 2)  # the last transaction has no end: SQLite ignores it
    salvage = check_store(half_transferred)
    assert salvage.problems
    assert salvage.results.keys() < results.keys()


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"x" * 5000], ids=["empty", "header", "noise"])
def test_file_without_content_is_refused(path, content):
    path.write_bytes(content)
    for use in (lambda: Store(path, read_only=True), lambda: repair_store(path), lambda: check_store(path)):
        with pytest.raises(StoreError):
            use()
    assert path.read_bytes() == content


def test_intact_store_has_no_problems_and_is_not_replaced(path, results):
    before = path.read_bytes()
    salvage, aside = repair_store(path)
    assert (salvage.problems, salvage.lost, aside) == ([], 0, None)
    assert salvage.results.keys() == results.keys()
    assert path.read_bytes() == before


def change(path, statement, *values):
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "lost", "incomplete"),
    [
        ("UPDATE runs SET test_accuracy = 0.99 WHERE rowid = 5", 1, 0),
        ("UPDATE runs SET outcome = 'failed' WHERE rowid = 5", 1, 0),
        ("UPDATE runs SET checksum = NULL WHERE rowid = 5", 1, 0),
        ("DELETE FROM curves WHERE rowid = 5", 0, 1),
        ("UPDATE curves SET name = 'other' WHERE rowid = 5", 0, 1),
        ("DELETE FROM recordings WHERE rowid = 2", 0, 1),
        ("UPDATE recordings SET packed = x'00' WHERE rowid = 2", 0, 1),
    ],
)
def test_changed_rows_are_found_and_left_out(path, results, statement, lost, incomplete):
    change(path, statement)
    with pytest.raises(StoreError, match=r"damaged(.|\n)*store repair"):
        read_all(path, results)
    salvage, _ = repair_store(path)
    assert (salvage.lost, salvage.incomplete) == (lost, incomplete)
    assert len(read_all(path, salvage.results)) == RUNS - lost


def test_sweep_repeats_the_runs_that_were_lost(tmp_path):
    path = tmp_path / "results.sqlite"
    with Store(path) as store:
        sweep(SPECS, store, serial_executor)
        before = store.results(curves=True)
    change(path, "UPDATE runs SET best_epoch = 1, val_accuracy = 0.0 WHERE key = ?", SPECS[2].key)
    with Store(path) as store, pytest.raises(StoreError, match="damaged"):
        sweep(SPECS, store, serial_executor)
    repair_store(path)
    with Store(path) as store:
        assert [result.key for result in sweep(SPECS, store, serial_executor)] == [SPECS[2].key]
        assert all(equal_results(result, before[key]) for key, result in store.results(curves=True).items())


def test_store_of_an_earlier_version_is_checked_without_checksums(path):
    with sqlite3.connect(path) as old:
        for table in ("runs", "curves", "recordings"):
            old.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        old.execute("ALTER TABLE runs DROP COLUMN arrays")
        old.execute(f"PRAGMA user_version = {VERSION - 1}")
    old.close()
    assert not check_store(path).problems
    change(path, "UPDATE curves SET compressed = x'00' WHERE rowid = 7")
    change(path, "UPDATE runs SET spec = replace(spec, '0.1', '0.2') WHERE rowid = 9")
    assert len(check_store(path).problems) == 3, "a curve, a run, and the curves of that run"


def test_repair_waits_for_no_sweep(path):
    with store_lock(path), pytest.raises(StoreError, match="a sweep is using the store"):
        repair_store(path)


WRITE_UNTIL_FULL = """
import resource, sys
from dataclasses import replace
from equipoise.errors import StoreError
from equipoise.experiments.result import failed_result
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.store import Store
with Store(sys.argv[1]) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        for seed in range(10_000):
            spec = RunSpec(dataset="cora", depth=2, lr=0.1, seed=seed)
            store.put(failed_result(spec, "x" * 500))
            print(seed, flush=True)
    except StoreError as error:
        print(error, file=sys.stderr)
"""


def test_full_disk_loses_no_stored_result(tmp_path):
    """A file-size limit in a process of its own refuses writes as a full disk does."""
    path = tmp_path / "results.sqlite"
    process = subprocess.run(
        [sys.executable, "-c", WRITE_UNTIL_FULL, str(path)], capture_output=True, text=True, check=True, env=os.environ
    )
    written = len(process.stdout.split())
    assert 10 < written < 10_000
    assert "the store cannot be written" in process.stderr
    assert "free disk space" in process.stderr
    with Store(path) as store:
        assert len(store.results()) == written
        store.put(replace(next(iter(store.results().values())), reason="space again"))
    assert not check_store(path).problems


def test_full_disk_while_repairing_leaves_the_damaged_store(path):
    change(path, "UPDATE runs SET epochs = 1 WHERE rowid = 5")
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(StoreError, match="cannot be written"):
            repair_store(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} <= {path.name, f"{path.name}.lock"}


def test_clock_that_goes_backwards_changes_nothing_but_the_dates(tmp_path, monkeypatch):
    """The machine's clock is set back by a day before every run."""
    from datetime import datetime, timedelta  # noqa: PLC0415

    class Clock(datetime):
        days = 0

        @classmethod
        def now(cls, tz=None):
            cls.days += 1
            return super().now(tz) - timedelta(days=cls.days)

    for module in ("result", "store"):
        monkeypatch.setattr(f"equipoise.experiments.{module}.datetime", Clock)
    monkeypatch.setattr("time.time", lambda: 1e9 - 86400 * Clock.days)
    with Store(tmp_path / "a.sqlite") as store:
        results = sweep(SPECS, store, serial_executor, SweepCallback(), checkpoint_interval=0.0)
        assert list(store.results()) == [result.key for result in results], "in order of insertion, not of date"
        assert all(result.seconds >= 0 for result in results)
        dates = [result.when for result in results]
        assert dates == sorted(dates, reverse=True)
        assert sweep(SPECS, store, serial_executor) == []
        monkeypatch.undo()
        assert all(equal_results(store.results(curves=True)[one.key], run(one)) for one in SPECS)
