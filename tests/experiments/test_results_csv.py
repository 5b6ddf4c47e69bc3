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

positive = st.floats(min_value=1e-300, max_value=1e38)
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
    check(good.rsplit(",", 3)[0] + "\n", r"as many fields as the header(.|\n)*line 3")
    with pytest.raises(StoreError, match="cannot be read"):
        list(read_csv(tmp_path / "none.csv"))
    with pytest.raises(StoreError, match="cannot be written"):
        write_csv([], tmp_path / "no" / "folder.csv")


def replace_field(text, line, column, value):
    """The table with another text in one field."""
    rows = list(csv.reader(text.splitlines()))
    rows[line - 1][rows[0].index(column)] = value
    return "".join(",".join(f'"{field}"' for field in row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("test_accuracy", "inf"),
        ("test_accuracy", "-3"),
        ("test_accuracy", "1e9"),
        ("test_accuracy", "nan"),
        ("val_accuracy", "NaN"),
        ("val_accuracy", "1.0000001"),
        ("best_epoch", "0"),
        ("best_epoch", "99999999999999999999999"),
        ("epochs", "-1"),
        ("epochs", "9223372036854775808"),
        ("epochs", "9" * 5000),
        ("epochs", "2.5"),
        ("seconds", "inf"),
        ("depth", "two"),
    ],
)
def test_impossible_numbers_are_refused(tmp_path, column, value):
    path = tmp_path / "results.csv"
    write_csv([failed_result(one, "") for one in SPECS], path)
    path.write_text(replace_field(path.read_text(), 3, column, value))
    with pytest.raises(StoreError, match=rf"is not a number(.|\n)*line 3, column {column}"):
        list(read_csv(path))


def test_conflicting_rows_of_a_run_are_refused(tmp_path):
    path = tmp_path / "results.csv"
    write_csv([Result(spec=SPECS[0], outcome="finished", test_accuracy=0.5, epochs=6)], path)
    row = path.read_text().splitlines()[1]
    path.write_text(path.read_text() + row + "\n")
    assert len(list(read_csv(path))) == 2, "equal rows are no conflict"
    path.write_text(path.read_text() + row.replace(",0.5,", ",0.6,") + "\n")
    with pytest.raises(StoreError, match=r"also in line 2, with 0.5 instead of 0.6(.|\n)*line 4, column test_accuracy"):
        list(read_csv(path))


def test_other_numbers_than_in_the_store_are_counted(tmp_path):
    ours, theirs = (Result(spec=SPECS[0], outcome="finished", test_accuracy=a, seconds=a) for a in (0.5, 0.6))
    with Store(tmp_path / "a.sqlite") as store:
        store.merge([ours, failed_result(SPECS[1], "")])
        assert store.merge([theirs, failed_result(SPECS[1], "other")]) == MergeCount(known=2, differing=1)
        assert store.results()[ours.key] == ours


def test_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "results.csv"
    write_csv([failed_result(SPECS[0], "")], path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [result.key for result in read_csv(path)] == [SPECS[0].key]


def test_rows_are_sorted_by_key(tmp_path):
    results = [failed_result(one, "") for one in SPECS]
    write_csv(results, tmp_path / "a.csv")
    write_csv(results[::-1], tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert [one.key for one in read_csv(tmp_path / "a.csv")] == sorted(one.key for one in SPECS)


def test_a_row_with_fields_missing_is_named(tmp_path):
    path = tmp_path / "short.csv"
    write_csv([failed_result(RunSpec(dataset="cora", depth=2, lr=0.1), "out of memory")], path)
    path.write_text(path.read_text().rstrip().rpartition(",")[0] + "\n")
    with pytest.raises(StoreError, match="as many fields as the header"):
        list(read_csv(path))
