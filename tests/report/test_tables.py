import csv
import io
import math
from dataclasses import replace

import pytest

from equipoise.experiments.files import load, targets
from equipoise.report.comparison import Row, compare
from equipoise.report.formats import FORMATS, as_csv, as_latex, as_markdown, records_csv
from equipoise.report.summary import Estimate, Summary, summarize
from equipoise.report.tables import report
from tests.report.runs import COMPLETE, results, runs_of, small


def made(numbers=COMPLETE):
    experiment = small()
    return report(experiment, results(experiment, numbers))


def row(text, *start):
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    (found,) = [dict(zip(lines[0], line, strict=True)) for line in lines if line[: len(start)] == list(start)]
    return found


def test_ours_stands_beside_the_papers():
    assert row(as_markdown(made()), "cora", "10", "bal-o") == {
        "data set": "cora",
        "L": "10",
        "start": "bal-o",
        "ours": "**79.00 ± 12.71**",
        "n": "2/2",
        "epochs to best": "200 ± 0",
        "paper": "**79.40 ± 1.34**",
        "difference": "−0.40",
        "intervals": "overlap",
    }


def test_what_is_missing_is_called_missing():
    text = as_markdown(made({("cora", 10, "bal-o"): ([78, 80], 200)}))
    cell = row(text, "texas", "2", "xav")
    assert (cell["ours"], cell["n"], cell["difference"], cell["intervals"]) == ("missing", "0/2", "", "")
    assert "2 of 16 runs, 7 of 8 cells missing" in text


def test_the_best_of_a_group_is_bold_only_when_all_of_it_is_there():
    part = {at: numbers for at, numbers in COMPLETE.items() if at != ("cora", 2, "xav")}
    text = as_markdown(made(part))
    assert row(text, "cora", "2", "bal-o")["ours"] == "75.00 ± 12.71"
    assert row(text, "cora", "10", "xav")["ours"] == "25.00 ± 63.53"
    assert row(text, "texas", "10", "bal-o")["ours"] == "**58.00 ± 12.71**"


def test_equal_ones_are_both_the_best():
    text = as_markdown(made(COMPLETE | {("texas", 2, "bal-o"): ([55, 55], 1)}))
    assert {row(text, "texas", "2", init)["ours"] for init in ("xav", "bal-o")} == {"**55.00 ± 0.00**"}


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
def test_intervals_overlap(ours, paper, overlap):
    assert Row((), Summary(ours, None, 5), paper, None, False, False).overlap is overlap


def test_a_difference_of_nothing_has_no_sign():
    same = COMPLETE | {("cora", 10, "bal-o"): ([79.4, 79.399], 200)}
    assert row(as_markdown(made(same)), "cora", "10", "bal-o")["difference"] == "0.00"


def test_runs_that_diverged_or_failed_are_told():
    experiment = small()
    cell = experiment.cells[0]
    runs = [
        *runs_of(cell, [40], outcome="diverged"),
        *runs_of(replace(cell, specs=cell.specs[1:]), [1], outcome="failed"),
    ]
    text = as_markdown(report(experiment, runs))
    assert row(text, "cora", "2", "xav")["n"] == "1/2, 1 diverged, 1 failed"
    assert "1 diverged, 1 failed" in text


def test_claims_are_told_with_the_numbers_that_decide_them():
    text = as_markdown(made(COMPLETE | {("texas", 10, "bal-o"): ([50, 51], 200)}))
    (line,) = [line for line in text.splitlines() if "At L ≥ 10, bal-o is better" in line]
    assert line.startswith("- **does not hold**: At L ≥ 10, bal-o is better (Section 3.)")
    assert "True in 1 of 2 comparisons" in line
    assert "not texas L = 10: 50.5 ± 6.4 against 51.0 ± 12.7" in line
    assert "By the paper's numbers: true in 1 of 1." in line
    assert "None of 2 comparisons has its runs" in as_markdown(made({}))


def test_csv_has_every_number_and_reads_back():
    rows = list(csv.DictReader(io.StringIO(as_csv(made({("cora", 10, "bal-o"): ([78, 80], 200)})))))
    assert len(rows) == 8
    (there,) = [row for row in rows if row["status"] == "complete"]
    assert (float(there["accuracy"]), float(there["paper_accuracy"]), there["overlap"]) == (79.0, 79.4, "true")
    assert float(there["difference"]) == pytest.approx(-0.4)
    missing = next(row for row in rows if row["status"] == "missing")
    assert (missing["accuracy"], missing["n"]) == ("", "0")
    claims = list(csv.DictReader(io.StringIO(records_csv(made().comparisons))))
    assert [row["true"] for row in claims[:2]] == ["true", "true"]
    assert claims[0]["at"] == "dataset=cora, depth=10"


def test_latex_is_balanced_and_escaped():
    text = as_latex(made())
    assert r"A small\_table (Table 9)" in text
    assert r"\textbf{79.00 $\pm$ 12.71}" in text
    assert r"50 \% of it" in text
    assert r"At L $\geq$ 10" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "&" in line]
    assert {line.count("&") for line in body} == {8}
    for environment in ("longtable", "itemize"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}")


@pytest.mark.parametrize("name", [name for name in targets() if name != "datasets"])
def test_every_target_can_be_written_without_a_run(name):
    empty = report(load(name), [])
    for write, _ in FORMATS.values():
        assert "missing" in write(empty)
    latex = as_latex(empty)
    assert latex.isascii(), sorted({character for character in latex if not character.isascii()})


def test_published_digits_are_kept():
    assert "73.00 ± 3.02" in as_markdown(report(load("sgd"), []))
    assert "77.8 ± 0.9" in as_markdown(report(load("gcn"), []))


def test_rows_come_in_the_order_of_the_grid():
    experiment = small()
    rows = compare(experiment, summarize(experiment, []))
    assert [row.at for row in rows] == [cell.at for cell in experiment.cells]
