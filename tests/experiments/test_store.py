import sqlite3
import zlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from equipoise.errors import StoreError
from equipoise.experiments.recording_plan import RecordingPlan
from equipoise.experiments.result import failed_result
from equipoise.experiments.run import run
from equipoise.experiments.schema import APPLICATION_ID, MIGRATIONS, VERSION
from equipoise.experiments.store import MergeCount, Store
from tests.experiments.workloads import SPECS, equal_results, spec


@pytest.fixture(scope="module")
def results():
    return [run(one) for one in SPECS]


def query(path, statement):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def dump(path):
    connection = sqlite3.connect(path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def test_stored_results_and_curves_are_bit_identical(tmp_path, results):
    with Store(tmp_path / "results.sqlite") as store:
        for result in results:
            store.put(result)
    with Store(tmp_path / "results.sqlite", read_only=True) as store:
        stored = store.results(curves=True)
        assert list(stored) == [result.key for result in results]
        for result in results:
            assert equal_results(stored[result.key], result)
            assert stored[result.key] == result
        assert store.results([results[2].key]) == {results[2].key: results[2]}
        assert not store.results()[results[0].key].curves
        assert store.outcomes() == {result.key: "finished" for result in results}


def test_one_result_per_run(tmp_path, results):
    with Store(tmp_path / "results.sqlite") as store:
        store.put(failed_result(results[0].spec, "out of memory", "Traceback …"))
        assert store.results()[results[0].key].traceback == "Traceback …"
        store.put(results[0])
        assert equal_results(store.results(curves=True)[results[0].key], results[0])
        store.put(failed_result(results[0].spec, "out of memory"))
        assert len(store.outcomes()) == 1
        assert not store.curves(results[0].key)


def test_merge_keeps_results_and_replaces_failures(tmp_path, results):
    first, second, third, _ = results
    with Store(tmp_path / "a.sqlite") as store:
        store.put(first)
        store.put(failed_result(second.spec, "out of memory"))
        other = replace(first, test_accuracy=0.123)
        assert store.merge([other, second, third]) == MergeCount(added=1, replaced=1, known=1, differing=1)
        stored = store.results(curves=True)
        assert all(equal_results(stored[result.key], result) for result in (first, second, third))
        before = dump(store.path)
        assert store.merge([other, failed_result(second.spec, "again"), third]) == MergeCount(known=3, differing=1)
        assert dump(store.path) == before


def test_merge_adds_missing_curves(tmp_path, results):
    """A CSV table has no curves; merging the store that it came from adds them."""
    with Store(tmp_path / "a.sqlite") as store:
        store.merge([replace(results[0], curves={})])
        store.merge([results[0]])
        assert equal_results(store.results(curves=True)[results[0].key], results[0])
        store.merge([replace(results[1], curves={})])
        store.merge([replace(results[1], test_accuracy=0.5)])
        assert not store.curves(results[1].key), "these curves belong to another result"


def test_merge_is_atomic(tmp_path, results):
    def broken_results():
        yield results[0]
        raise ValueError

    with Store(tmp_path / "a.sqlite") as store:
        with pytest.raises(ValueError):  # noqa: PT011 - the one above
            store.merge(broken_results())
        assert not store.outcomes()
        store.put(results[0])


def test_migration_from_version_1(tmp_path):
    path = tmp_path / "old.sqlite"
    one = spec()
    with sqlite3.connect(path) as old:
        old.executescript(MIGRATIONS[0])
        old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        old.execute("PRAGMA user_version = 1")
        values = (one.key, '{"dataset": "synthetic-citation", "depth": 2, "width": 8, "lr": 0.1, "epochs": 6}')
        old.execute(
            "INSERT INTO runs VALUES (?, ?, 'finished', '', '', 0.5, 0.6, 3, 6, 1.5, 'a machine', '{}', 'then')", values
        )
        old.execute("INSERT INTO curves VALUES (?, 'loss', ?)", (one.key, zlib.compress(np.float32([2, 1]).tobytes())))
    old.close()
    with Store(path) as store:
        (result,) = store.results(curves=True).values()
        assert list(result.curves["loss"]) == [2, 1]
        assert (result.spec, result.test_accuracy, result.when) == (one, 0.5, "then")
        assert not store.running()
        store.mark_running(one.key)
        assert list(store.running()) == [one.key]
        assert query(path, "PRAGMA user_version") == [(VERSION,)]
        assert query(path, "PRAGMA journal_mode") == [("wal",)]


def test_readers_do_not_wait_for_writers(tmp_path, results):
    path = tmp_path / "results.sqlite"
    with Store(path, timeout=0.1) as store:
        store.put(results[0])
        writer = sqlite3.connect(path, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        assert store.outcomes() == {results[0].key: "finished"}
        with pytest.raises(StoreError, match=r"locked(.|\n)*results.sqlite(.|\n)*remedy"):
            store.put(results[1])
        writer.execute("ROLLBACK")
        writer.close()
        store.put(results[1])


def test_errors_explain_why_a_file_is_not_a_store(tmp_path):
    with pytest.raises(StoreError, match=r"the store does not exist(.|\n)*none.sqlite"):
        Store(tmp_path / "none.sqlite", read_only=True)
    assert not (tmp_path / "none.sqlite").exists()
    with pytest.raises(StoreError, match=r"cannot be opened(.|\n)*folder exists"):
        Store(tmp_path / "no" / "folder.sqlite")
    text = tmp_path / "text.sqlite"
    text.write_text("a,b\n" * 1000)
    with pytest.raises(StoreError, match="not a store"):
        Store(text)
    assert text.read_text() == "a,b\n" * 1000
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as other:
        other.execute("CREATE TABLE runs (key)")
    other.close()
    content = foreign.read_bytes()
    with pytest.raises(StoreError, match="not a store of equipoise"):
        Store(foreign)
    assert foreign.read_bytes() == content
    newer = tmp_path / "newer.sqlite"
    Store(newer).close()
    with sqlite3.connect(newer) as later:
        later.execute(f"PRAGMA user_version = {VERSION + 3}")
    later.close()
    with pytest.raises(StoreError, match=f"version {VERSION + 3}(.|\n)*update equipoise"):
        Store(newer)


def test_curves_are_compressed(tmp_path):
    flat = replace(failed_result(spec(), "flat"), curves={"loss": np.zeros(5000, dtype=np.float32)})
    with Store(tmp_path / "a.sqlite") as store:
        store.put(flat)
        ((size,),) = query(store.path, "SELECT length(compressed) FROM curves")
        assert size < 100
        assert np.array_equal(store.curves(flat.key)["loss"], flat.curves["loss"])


@pytest.fixture(scope="module")
def recorded():
    return run(SPECS[1], recording_plan=RecordingPlan(2, ("gradient", "update")))


def test_recordings_belong_to_their_result(tmp_path, recorded):
    with Store(tmp_path / "a.sqlite") as store:
        store.put(recorded)
        assert store.recording_plans() == {recorded.key: RecordingPlan(2, ("gradient", "update"))}
        assert store.results()[recorded.key].recording is None
        assert store.results(recordings=True)[recorded.key].recording == recorded.recording
        pd.testing.assert_frame_equal(
            store.recording(recorded.key).unpack().frame(), recorded.recording.unpack().frame()
        )
        store.put(failed_result(recorded.spec, "out of memory"))
        assert store.recording(recorded.key) is None
        assert not store.recording_plans()


def test_merge_adds_missing_recordings(tmp_path, recorded):
    with Store(tmp_path / "a.sqlite") as store:
        store.merge([replace(recorded, recording=None)])
        store.merge([replace(recorded, test_accuracy=0.123)])
        assert not store.recording_plans(), "this recording belongs to another result"
        store.merge([recorded])
        store.merge([recorded])
        assert store.recording(recorded.key) == recorded.recording


def test_migration_from_version_2(tmp_path, recorded):
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as old:
        for migration in MIGRATIONS[:2]:
            old.executescript(migration)
        old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        old.execute("PRAGMA user_version = 2")
        old.execute("INSERT INTO running VALUES ('a key', 'then')")
    old.close()
    with Store(path) as store:
        assert store.running() == {"a key": "then"}
        store.put(recorded)
        assert list(store.recording_plans()) == [recorded.key]
        assert query(path, "PRAGMA user_version") == [(VERSION,)]


def test_migration_adds_checksums_to_existing_rows(tmp_path, results, recorded):
    path = tmp_path / "old.sqlite"
    with Store(path) as store:
        for result in (*results, recorded):
            store.put(result)
    before = dump(path)
    with sqlite3.connect(path) as old:  # restore the schema of version 3
        for table in ("runs", "curves", "recordings"):
            old.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        old.execute("ALTER TABLE runs DROP COLUMN arrays")
        old.execute("PRAGMA user_version = 3")
    old.close()
    with Store(path) as store:
        assert all(equal_results(store.results(curves=True)[result.key], result) for result in results)
        assert store.recording(recorded.key) == recorded.recording
    assert dump(path) == before
