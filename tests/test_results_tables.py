"""The tables in the documentation are those of the committed results."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.experiments.parser import load_experiment
from equipoise.experiments.results_csv import read_csv

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import results_tables  # noqa: E402


@pytest.fixture(scope="module")
def results():
    return list(read_csv(ROOT / "results" / "runs.csv"))


def test_pages_are_up_to_date():
    assert results_tables.main(["--check"]) == 0, "run: python tools/results_tables.py"


def test_a_changed_result_changes_the_page(results):
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    key = next(spec.key for cell in load_experiment("sgd").cells for spec in cell.specs if spec.dataset == "texas")
    changed = [replace(run, test_accuracy=0.99) if run.key == key else run for run in results]
    assert changed != results
    assert results_tables.updated_page(page, changed) != page


def test_published_tables_leave_out_cells_without_runs(results):
    experiment = load_experiment("sgd")
    texas = [run for run in results if run.spec.dataset == "texas"]
    rows = [line for line in results_tables.rendered_table(experiment, texas).splitlines() if line.startswith("| ")]
    assert rows[0].startswith("| data set")
    assert len(rows) == 1 + 15
    assert all(row.startswith("| texas") for row in rows[1:])


def test_other_tables_have_a_column_per_initialisation(results):
    text = results_tables.rendered_table(load_experiment("transformer"), results)
    header = next(line for line in text.splitlines() if line.startswith("| "))
    assert [cell.strip() for cell in header.strip("|").split("|")] == [
        *("variation", "L", "default", "rebalanced", "bal-x", "bal-o")
    ]
    row = next(line for line in text.splitlines() if line.startswith("| without bias | 10 "))
    assert row.count("n = 3") == 4
    assert "**79.6 ± 0.9 (n = 3)**" in row


def test_summary_counts_the_experiments_of_the_page(results):
    page = "".join(f"<!-- results: {name} -->\n<!-- end of results -->\n" for name in ("summary", "gat-v1", "sgd"))
    texas = [run for run in results if run.spec.dataset == "texas" or run.spec.kind == "gat"]
    rows = [line for line in results_tables.updated_page(page, texas).splitlines() if line.startswith("| ")][:3]
    header, gat, sgd = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    assert header[4:] == ["holds", "holds but for noise", "contradicted", "open"]
    assert gat[:4] == ["`gat-v1`", "15 of 30", "3 of 6", "0 of 3"]
    assert sgd[:4] == ["`sgd`", "75 of 675", "15 of 135", "15 of 15"]
    assert [sum(int(n or 0) for n in row[4:]) for row in (gat, sgd)] == [
        len(load_experiment(name).claims) for name in ("gat-v1", "sgd")
    ]


def test_experiment_without_runs():
    assert "equipoise reproduce sgd" in results_tables.rendered_table(load_experiment("sgd"), [])
