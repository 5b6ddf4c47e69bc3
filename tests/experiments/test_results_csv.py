import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import StoreError
from equipoise.experiments.result import LIBRARIES, OUTCOMES, Result, failed_result
from equipoise.experiments.results_csv import COLUMNS, read_csv, write_csv
from equipoise.experiments.run import run
from equipoise.experiments.spec import FIELDS, RunSpec
from equipoise.experiments.store import MergeCount, Store
from tests.experiments.workloads import SPECS, spec

positive = st.floats(min_value=1e-300, max_value=1e300)
fraction = st.floats(min_value=0, max_value=1)
specs = st.builds(
    RunSpec,
    dataset=st.sampled_from(["cora", "texas"]),
    depth=st.integers(1, 80),
    lr=positive,
    seed=st.integers(0, 2**40),
    dropout=st.floats(min_value=0, max_value=1, exclude_max=True),
    attention_dropout=st.none() | st.floats(min_value=0, max_value=1, exclude_max=True),
    skip=st.sampled_from([None, "linear", "identity"]),
    bias=st.booleans(),
    patience=st.none() | st.integers(1, 100),
    epochs=st.integers(1, 10**6),
)
results = st.builds(
    Result,
    spec=specs,
    outcome=st.sampled_from(OUTCOMES),
    reason=st.text(),
    traceback=st.text(),
    test_accuracy=st.none() | fraction,
    val_accuracy=st.none() | fraction,
    best_epoch=st.none() | st.integers(1, 5000),
    epochs=st.integers(0, 5000),
    seconds=st.floats(min_value=0, max_value=1e9),
    machine=st.text(),
    versions=st.dictionaries(st.sampled_from(["equipoise", *LIBRARIES, "python"]), st.text(min_size=1)),
    when=st.text(),
)


def test_tables_of_earlier_versions_lack_later_settings(tmp_path):
    path = tmp_path / "results.csv"
    write_csv([run(SPECS[0])], path)
    rows = list(csv.DictReader(path.open(newline="")))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in COLUMNS if name != "calibrate"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    assert [result.spec for result in read_csv(path)] == [SPECS[0]]


@given(st.lists(results, unique_by=lambda result: result.key, max_size=5))
def test_round_trip_is_lossless(tmp_path_factory, given_results):
    path = tmp_path_factory.mktemp("table") / "results.csv"
    assert write_csv(given_results, path) == len(given_results)
    read = {result.key: result for result in read_csv(path)}
    assert read == {result.key: result for result in given_results}


def test_columns():
    """Other programs rely on these columns; ``max_epochs`` and ``epochs`` are distinct."""
    assert COLUMNS[0] == "key"
    assert set(COLUMNS) > {*FIELDS, "max_epochs", "outcome", "test_accuracy", "val_accuracy", "best_epoch", "seconds"}
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_store_round_trip_through_csv(tmp_path):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    with Store(tmp_path / "a.sqlite") as a, Store(tmp_path / "b.sqlite") as b:
        a.merge(
            [*(run(one) for one in SPECS), failed_result(spec(seed=9), 'out of "memory",\n really', "Trace\r\nback")]
        )
        write_csv(a.results().values(), first)
        assert b.merge(read_csv(first)) == MergeCount(added=5)
        assert b.merge(read_csv(first)) == MergeCount(known=5)
        write_csv(b.results().values(), second)
        assert a.results() == {key: b.results()[key] for key in a.results()}
    assert first.read_bytes() == second.read_bytes()
    with first.open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["outcome"] == "finished")
    assert (row["dataset"], row["epochs"], row["max_epochs"], row["skip"]) == ("synthetic-citation", "6", "6", "")


def test_errors_name_the_line(tmp_path):
    path = tmp_path / "results.csv"
    write_csv([run(SPECS[0]), failed_result(spec(seed=9), "out of memory")], path)
    good = path.read_text()

    def check(text, message):
        path.write_text(text)
        with Store(tmp_path / "a.sqlite") as store:
            with pytest.raises(StoreError, match=message):
                store.merge(read_csv(path))
            assert not store.outcomes()

    key = good.splitlines()[1].split(",")[0]
    check(good.replace(key, "0" * 16), r"key 0000000000000000 does not match the settings(.|\n)*line 2")
    check(good.replace("failed", "fialed"), r"unknown outcome 'fialed'(.|\n)*line [23]")
    check(good.replace("gatv2", "gatv9"), r"unknown kind 'gatv9'(.|\n)*line 2")
    check(good.replace("true", "perhaps"), r"'perhaps' is neither 'true' nor 'false'(.|\n)*line 2")
    check(good.replace("test_accuracy", "accuracy"), r"no column test_accuracy(.|\n)*store export")
    check("", "no column key, dataset, depth …")
    with pytest.raises(StoreError, match="cannot be read"):
        list(read_csv(tmp_path / "none.csv"))
    with pytest.raises(StoreError, match="cannot be written"):
        write_csv([], tmp_path / "no" / "folder.csv")


def test_rows_are_sorted_by_key(tmp_path):
    results = [failed_result(one, "") for one in SPECS]
    write_csv(results, tmp_path / "a.csv")
    write_csv(results[::-1], tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert [one.key for one in read_csv(tmp_path / "a.csv")] == sorted(one.key for one in SPECS)
