import math
from dataclasses import replace

import pytest

from equipoise.experiments.parser import load_experiment, parse_experiment
from equipoise.report.formats import as_markdown
from equipoise.report.summary import CellSummary, Estimate, TableRow, summarize, table_rows
from equipoise.report.tables import table_report
from tests.report.runs import COMPLETE, SMALL, cell_results, make_results, small_experiment, small_report


def find_row(markdown, *coordinates):
    """The row of a Markdown table that begins with these cells, as header → cell."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line[:1] == "|"]
    header = lines[0]
    (row,) = [line for line in lines if line[: len(coordinates)] == list(coordinates)]
    return dict(zip(header, row, strict=True))


def test_row_compares_ours_with_the_paper():
    assert find_row(as_markdown(small_report()), "cora", "10", "bal-o") == {
        "data set": "cora",
        "L": "10",
        "init": "bal-o",
        "ours": "**79.00 ± 1.27**",
        "n": "2/2",
        "epochs to best": "200 ± 0",
        "paper": "**79.40 ± 1.34**",
        "difference": "−0.40",
        "intervals": "overlap",
    }


def test_tables_name_the_metric_where_it_is_not_accuracy():
    experiment = parse_experiment(SMALL.replace("texas", "minesweeper"), "small", "small.toml")
    report = table_report(experiment, make_results(experiment, {("minesweeper", 10, "bal-o"): ([78, 80], 200)}))
    row = find_row(as_markdown(report), "minesweeper", "10", "bal-o")
    assert (row["metric"], row["ours"], row["paper"]) == ("ROC AUC", "79.00 ± 12.71", "")
    cora = find_row(as_markdown(report), "cora", "10", "bal-o")
    assert (cora["metric"], cora["paper"]) == ("accuracy", "**79.40 ± 1.34**")
    assert {record["metric"] for record in report.records} == {"accuracy", "roc_auc"}


def test_a_note_says_how_many_cells_are_not_better_than_a_constant_prediction():
    note = small_report().notes[-1]
    assert note.startswith(
        "A constant prediction, the largest class of the test nodes, scores 31.9 (cora), 59.5 (texas)"
    )
    assert note.endswith("; 5 of 8 cells do not exceed it."), note
    cora = {("cora", 10, "bal-o"): ([78, 80], 200)}
    assert small_report(cora).notes[-1].endswith("scores 31.9 (cora); all cells exceed it.")
    assert list(small_report({}).notes) == ["50 % of it"]


def test_cells_without_runs_are_missing():
    text = as_markdown(small_report({("cora", 10, "bal-o"): ([78, 80], 200)}))
    row = find_row(text, "texas", "2", "xav")
    assert (row["ours"], row["n"], row["difference"], row["intervals"]) == ("missing", "0/2", "", "")
    assert "2 of 16 runs, 7 of 8 cells missing" in text


def test_best_of_a_group_is_bold_only_when_the_group_is_complete():
    numbers = {at: number for at, number in COMPLETE.items() if at != ("cora", 2, "xav")}
    text = as_markdown(small_report(numbers))
    assert find_row(text, "cora", "2", "bal-o")["ours"] == "75.00 ± 1.27"
    assert find_row(text, "cora", "10", "xav")["ours"] == "25.00 ± 1.27"
    assert find_row(text, "texas", "10", "bal-o")["ours"] == "**58.00 ± 1.27**"


@pytest.mark.parametrize("accuracy", [55, 55 + 1e-13])
def test_equal_best_means_are_all_bold(accuracy):
    text = as_markdown(small_report(COMPLETE | {("texas", 2, "bal-o"): ([accuracy] * 2, 1)}))
    assert {find_row(text, "texas", "2", init)["ours"] for init in ("xav", "bal-o")} == {"**55.00 ± 0.00**"}


@pytest.mark.parametrize(
    ("ours", "paper", "overlap"),
    [
        (Estimate(50, 1, 5), Estimate(52, 1, 0), True),
        (Estimate(50, 1, 5), Estimate(52.2, 1, 0), False),
        (Estimate(50, 1, 5), Estimate(51, math.nan, 0), True),
        (Estimate(50, 1, 5), Estimate(51.2, math.nan, 0), False),
        (Estimate(2100 / 37, 0, 5), Estimate(56.8, 0, 0), True),  # 56.757, rounded
        (Estimate(50, math.nan, 1), Estimate(50, 1, 0), None),
        (None, Estimate(50, 1, 0), None),
        (Estimate(50, 1, 5), None, None),
    ],
)
def test_overlap_of_intervals(ours, paper, overlap):
    assert TableRow((), CellSummary(ours, None, 5), paper, None, False, False).overlap is overlap


def test_zero_difference_has_no_sign():
    numbers = COMPLETE | {("cora", 10, "bal-o"): ([79.4, 79.399], 200)}
    assert find_row(as_markdown(small_report(numbers)), "cora", "10", "bal-o")["difference"] == "0.00"


def test_diverged_and_failed_runs_are_counted():
    experiment = small_experiment()
    cell = experiment.cells[0]
    results = [
        *cell_results(cell, [40], outcome="diverged"),
        *cell_results(replace(cell, specs=cell.specs[1:]), [1], outcome="failed"),
    ]
    text = as_markdown(table_report(experiment, results))
    assert find_row(text, "cora", "2", "xav")["n"] == "1/2, 1 diverged, 1 failed"
    assert "1 of 16 runs, 7 of 8 cells missing, 1 diverged, 1 failed" in text


def test_claims_are_listed_with_the_deciding_numbers():
    text = as_markdown(small_report(COMPLETE | {("texas", 10, "bal-o"): ([20, 20.2], 200)}))
    (line,) = [line for line in text.splitlines() if "At L ≥ 10, bal-o is better" in line]
    assert line.startswith("- **contradicted**: At L ≥ 10, bal-o is better (Section 3.)")
    assert "1 of 2 comparisons agreeing, 1 contradicting; mean lead +11.6 points" in line
    assert "contradicts at texas L = 10: 20.1 ± 1.3 against 51.0 ± 1.3" in line
    assert "Published numbers: 1 of 1 comparison agreeing." in line


def test_claims_without_runs_are_listed():
    assert "2 comparisons pending" in as_markdown(small_report({}))
    part = as_markdown(small_report({at: COMPLETE[at] for at in COMPLETE if at[0] == "cora"}))
    assert "1 of 2 comparisons agreeing, 1 pending; mean lead +54.0 points; closest at cora L = 10" in part


def test_published_digits_are_preserved():
    assert "73.00 ± 3.02" in as_markdown(table_report(load_experiment("sgd"), []))
    assert "77.8 ± 0.9" in as_markdown(table_report(load_experiment("gcn"), []))


def test_rows_are_in_the_order_of_the_grid():
    experiment = small_experiment()
    rows = table_rows(experiment, summarize(experiment, []))
    assert [row.coordinates for row in rows] == [cell.coordinates for cell in experiment.cells]
