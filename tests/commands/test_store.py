import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import StoreError
from equipoise.experiments.result import failed_result
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from tests.experiments.workloads import SPECS, equal_results


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def store(*arguments):
    return CliRunner().invoke(app, ["store", *map(str, arguments)])


def test_stores_merge():
    results = [run(one) for one in SPECS]
    with Store("here.sqlite") as here, Store("there.sqlite") as there:
        here.merge([results[0], failed_result(SPECS[1], "no memory")])
        there.merge(results[1:])
    assert store("import", "there.sqlite", "--store", "here.sqlite").stdout == (
        "2 runs added, 0 already there, 1 failures replaced\n"
    )
    assert store("import", "there.sqlite", "--store", "here.sqlite").stdout == "0 runs added, 3 already there\n"
    with Store("here.sqlite") as here:
        merged = here.results(curves=True)
    assert all(equal_results(merged[result.key], result) for result in results)


def test_export_and_import_round_trip(tmp_path):
    with Store() as first:
        first.merge([run(SPECS[0]), failed_result(SPECS[1], "no memory", "a\nb")])
    assert store("export", "results.csv").stdout == "2 runs in results.csv\n"
    assert store("import", "results.csv", "--store", "second.sqlite").stdout == "2 runs added, 0 already there\n"
    assert store("export", "again.csv", "--store", "second.sqlite").exit_code == 0
    assert (tmp_path / "results.csv").read_bytes() == (tmp_path / "again.csv").read_bytes()


def test_other_numbers_are_reported(tmp_path):
    with Store() as first:
        first.merge([run(SPECS[0])])
    store("export", "results.csv")
    (tmp_path / "results.csv").write_text((tmp_path / "results.csv").read_text().replace("finished,", "converged,"))
    result = store("import", "results.csv")
    assert result.stdout == "0 runs added, 1 already there\n"
    assert "1 of the runs already there have other numbers in results.csv" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "results.csv"), "the store does not exist"),
        (("export", "results.xlsx"), "exported as .csv"),
        (("import", "none.csv"), "no such file"),
    ],
)
def test_errors_name_the_mistake(arguments, message, tmp_path):
    result = store(*arguments)
    assert isinstance(result.exception, StoreError)
    assert message in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_other_files_are_not_imported(tmp_path):
    (tmp_path / "text.sqlite").write_text("hello " * 100)
    result = store("import", "text.sqlite")
    assert isinstance(result.exception, StoreError)
    assert "not a store" in str(result.exception)


def test_a_refused_table_creates_no_store(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    assert isinstance(store("import", "table.csv").exception, StoreError)
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]


def test_check_and_repair(tmp_path):
    with Store() as here:
        here.merge([run(one) for one in SPECS])
    assert store("check").stdout.endswith("4 runs, 12 curves and 0 recordings are readable\nintact\n")
    assert "nothing to repair" in store("repair").stdout
    with closing(sqlite3.connect("equipoise.sqlite")) as connection, connection:
        connection.execute("UPDATE runs SET test_accuracy = 1.0 WHERE key = ?", (SPECS[1].key,))
    for command in (("export", "results.csv"), ("import", "equipoise.sqlite", "--store", "other.sqlite")):
        result = store(*command)
        assert isinstance(result.exception, StoreError)
        assert "equipoise store repair --store equipoise.sqlite" in str(result.exception)
    assert not (tmp_path / "results.csv").exists()
    checked = store("check")
    assert checked.exit_code == 1
    assert "to keep what is readable:  equipoise store repair" in checked.stderr
    assert "1 runs were lost; the damaged file is now equipoise.sqlite.damaged" in store("repair").stdout
    assert store("check").exit_code == 0
    with Store() as here:
        assert here.outcomes().keys() == {one.key for one in SPECS} - {SPECS[1].key}
