import sqlite3
import zlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from equipoise.errors import StoreError
from equipoise.experiments.result import failed
from equipoise.experiments.run import run
from equipoise.experiments.schema import APPLICATION_ID, MIGRATIONS, VERSION
from equipoise.experiments.store import Merged, Store
from equipoise.experiments.watch import Watch
from tests.experiments.workloads import SPECS, same, spec


@pytest.fixture(scope="module")
def results():
    return [run(one) for one in SPECS]


def test_keeps_results_and_curves_to_the_bit(tmp_path, results):
    with Store(tmp_path / "results.sqlite") as store:
        for result in results:
            store.put(result)
    with Store(tmp_path / "results.sqlite", create=False) as store:
        kept = store.results(curves=True)
        assert list(kept) == [result.key for result in results]
        for result in results:
            assert same(kept[result.key], result)
            assert kept[result.key] == result
        assert store.results([results[2].key]) == {results[2].key: results[2]}
        assert not store.results()[results[0].key].curves
        assert store.outcomes() == {result.key: "finished" for result in results}


def test_one_result_a_run(tmp_path, results):
    with Store(tmp_path / "results.sqlite") as store:
        store.put(failed(results[0].spec, "no memory", "Traceback …"))
        assert store.results()[results[0].key].traceback == "Traceback …"
        store.put(results[0])
        assert same(store.results(curves=True)[results[0].key], results[0])
        store.put(failed(results[0].spec, "no memory"))
        assert len(store.outcomes()) == 1
        assert not store.curves(results[0].key)


def test_merging_keeps_what_is_there_and_replaces_failures(tmp_path, results):
    first, second, third, _ = results
    with Store(tmp_path / "a.sqlite") as store:
        store.put(first)
        store.put(failed(second.spec, "no memory"))
        other = replace(first, test_accuracy=0.123)
        assert store.merge([other, second, third]) == Merged(added=1, replaced=1, known=1)
        kept = store.results(curves=True)
        assert all(same(kept[result.key], result) for result in (first, second, third))
        before = list(store._connection.iterdump())
        assert store.merge([other, failed(second.spec, "again"), third]) == Merged(known=3)
        assert list(store._connection.iterdump()) == before


def test_curves_come_after_the_numbers(tmp_path, results):
    """A table brings numbers only; the store that it was made from brings the curves of the same run later."""
    with Store(tmp_path / "a.sqlite") as store:
        store.merge([replace(results[0], curves={})])
        store.merge([results[0]])
        assert same(store.results(curves=True)[results[0].key], results[0])
        store.merge([replace(results[1], curves={})])
        store.merge([replace(results[1], test_accuracy=0.5)])
        assert not store.curves(results[1].key), "those curves belong to another result"


def test_an_error_on_the_way_merges_nothing(tmp_path, results):
    def broken():
        yield results[0]
        raise ValueError

    with Store(tmp_path / "a.sqlite") as store:
        with pytest.raises(ValueError):  # noqa: PT011 - the one above
            store.merge(broken())
        assert not store.outcomes()
        store.put(results[0])


def test_a_store_of_version_1_becomes_one_of_this_version(tmp_path):
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
        store.note_running(one.key)
        assert list(store.running()) == [one.key]
        assert store._connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_readers_do_not_wait_for_a_writer(tmp_path, results):
    path = tmp_path / "results.sqlite"
    with Store(path) as writer, Store(path, patience=0.1) as reader:
        writer.put(results[0])
        with writer._writing():
            assert reader.outcomes() == {results[0].key: "finished"}
            with pytest.raises(StoreError, match=r"locked(.|\n)*results.sqlite(.|\n)*remedy"):
                reader.put(results[1])
        reader.put(results[1])


def test_says_why_a_file_is_no_store(tmp_path):
    with pytest.raises(StoreError, match=r"there is no store here(.|\n)*none.sqlite"):
        Store(tmp_path / "none.sqlite", create=False)
    assert not (tmp_path / "none.sqlite").exists()
    with pytest.raises(StoreError, match=r"cannot be opened(.|\n)*folder is there"):
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
    flat = replace(failed(spec(), "flat"), curves={"loss": np.zeros(5000, dtype=np.float32)})
    with Store(tmp_path / "a.sqlite") as store:
        store.put(flat)
        ((size,),) = store._read("SELECT length(compressed) FROM curves")
        assert size < 100
        assert np.array_equal(store.curves(flat.key)["loss"], flat.curves["loss"])


@pytest.fixture(scope="module")
def watched():
    return run(SPECS[1], watch=Watch(2, ("gradient", "update")))


def test_recordings_stay_with_their_result(tmp_path, watched):
    with Store(tmp_path / "a.sqlite") as store:
        store.put(watched)
        assert store.recorded() == {watched.key: Watch(2, ("gradient", "update"))}
        assert store.results()[watched.key].recording is None
        assert store.results(recordings=True)[watched.key].recording == watched.recording
        pd.testing.assert_frame_equal(store.recording(watched.key).unpack().frame(), watched.recording.unpack().frame())
        store.put(failed(watched.spec, "no memory"))
        assert store.recording(watched.key) is None
        assert not store.recorded()


def test_recordings_are_merged(tmp_path, watched):
    with Store(tmp_path / "a.sqlite") as store:
        store.merge([replace(watched, recording=None)])
        store.merge([replace(watched, test_accuracy=0.123)])
        assert not store.recorded(), "that recording belongs to another result"
        store.merge([watched])
        store.merge([watched])
        assert store.recording(watched.key) == watched.recording


def test_a_store_of_version_2_takes_recordings(tmp_path, watched):
    path = tmp_path / "old.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as old:  # as version 2 left it
        old.execute("DROP TABLE recordings")
        old.execute("PRAGMA user_version = 2")
        old.execute("INSERT INTO running VALUES ('a key', 'then')")
    old.close()
    with Store(path) as store:
        assert store.running() == {"a key": "then"}
        store.put(watched)
        assert list(store.recorded()) == [watched.key]
        assert store._connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
