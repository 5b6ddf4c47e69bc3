import csv
import io
import math
import re
from dataclasses import replace

import pytest

from equipoise.experiments.parser import experiment_names, load_experiment, parse_experiment
from equipoise.report.summary import CellSummary, Estimate, TableRow, summarize, table_rows
from equipoise.report.tables import FORMATS, as_csv, as_latex, as_markdown, records_csv, table_report
from tests.report.runs import COMPLETE, SMALL, cell_results, make_results, small_experiment


def small_report(numbers=COMPLETE):
    experiment = small_experiment()
    return table_report(experiment, make_results(experiment, numbers))


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


def test_claims_say_how_many_comparisons_are_within_the_noise_and_which_way_their_means_point():
    noisy = {("cora", 10, "bal-o"): ([20, 34], 200), ("texas", 10, "bal-o"): ([40, 60], 200)}  # above, below xav
    (claim, *_) = small_report(COMPLETE | noisy).claims
    assert (claim.verdict, claim.summary) == ("open", "0 of 2 agree, 2 noise")
    assert claim.counts == {
        "agree": 0,
        "within the noise, means agree": 1,
        "within the noise, means do not agree": 1,
        "contradict": 0,
        "pending": 0,
    }
    assert claim.evidence.startswith("0 of 2 comparisons agreeing, 2 within the noise (means agree in 1); mean lead")
    assert "within the noise at texas L = 10: 50.0 ± 127.1 against 51.0 ± 1.3" in claim.evidence
    assert "at cora L = 10" not in claim.evidence, "only those whose means do not agree are written out"
    assert [row[4] for row in claim.comparisons] == ["within the noise (means agree)", "within the noise"]


def test_every_comparison_of_a_claim_counts_once():
    for name in ("sgd", "lipschitz", "gcn"):
        for claim in table_report(load_experiment(name), []).claims:
            assert sum(claim.counts.values()) == claim.counts["pending"] == len(claim.comparisons)
            assert (claim.lacks_runs, claim.has_runs) == (True, False)
    assert [sum(claim.counts.values()) for claim in small_report().claims] == [2, 2, 4]
    assert not any(claim.lacks_runs for claim in small_report().claims)


def test_claims_without_runs_are_listed():
    assert "2 comparisons pending" in as_markdown(small_report({}))
    part = as_markdown(small_report({at: COMPLETE[at] for at in COMPLETE if at[0] == "cora"}))
    assert "1 of 2 comparisons agreeing, 1 pending; mean lead +54.0 points; closest at cora L = 10" in part


def test_claims_have_a_table_of_comparisons():
    first, growing, _ = small_report({at: COMPLETE[at] for at in COMPLETE if at[0] == "cora"}).claims
    assert list(first.columns) == ["at", "better", "worse", "lead (points)", "finding", "paper"]
    assert first.comparisons == [
        ["cora L = 10", "79.0 ± 1.3", "25.0 ± 1.3", "+54.0", "agrees", "agrees"],
        ["texas L = 10", "missing", "missing", "", "pending", ""],
    ]
    assert growing.comparisons[0][1] == "75.0 ± 1.3 → 79.0 ± 1.3"


def test_bar_in_a_name_does_not_end_a_markdown_cell():
    text = SMALL.replace("[grid]", '[variants]\n"a | b" = {}\n[grid]').replace(
        "[[published]]", '[[published]]\nvariant = "a | b"'
    )
    report = table_report(parse_experiment(text, "small", "small.toml"), [])
    rows = [line for line in as_markdown(report).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {len(report.columns) + 1}
    assert r"a \| b" in rows[2]


def test_tags_are_inert_in_markdown():
    tag = "<img src=x onerror=alert(1)>"
    text = SMALL.replace("[grid]", f'[variants]\n"{tag}" = {{}}\n[grid]').replace(
        "[[published]]", f'[[published]]\nvariant = "{tag}"'
    )
    markdown = as_markdown(replace(table_report(parse_experiment(text, "small", "small.toml"), []), title="a < b </p>"))
    assert "<img" not in markdown
    assert "&lt;img src=x" in markdown
    assert "a < b &lt;/p>" in markdown


def test_csv_has_full_precision():
    rows = list(csv.DictReader(io.StringIO(as_csv(small_report({("cora", 10, "bal-o"): ([78, 80], 200)})))))
    assert len(rows) == 8
    (complete,) = [row for row in rows if row["status"] == "complete"]
    assert (float(complete["accuracy"]), float(complete["paper_accuracy"]), complete["overlap"]) == (79.0, 79.4, "true")
    assert float(complete["difference"]) == pytest.approx(-0.4)
    missing = next(row for row in rows if row["status"] == "missing")
    assert (missing["accuracy"], missing["n"]) == ("", "0")


def test_csv_columns_are_stable():
    report = small_report()
    assert ",".join(report.records[0]) == (
        "dataset,depth,init,status,accuracy,accuracy_ci,epochs,epochs_ci,n,wanted,diverged,failed,best,"
        "paper_accuracy,paper_accuracy_ci,paper_epochs,paper_epochs_ci,difference,overlap,metric"
    )
    assert ",".join(report.comparisons[0]) == (
        "claim,verdict,measure,at,better,better_ci,worse,worse_ci,lead,finding,means_agree"
    )


def test_csv_of_claims():
    claims = list(csv.DictReader(io.StringIO(records_csv(small_report().comparisons))))
    assert [row["finding"] for row in claims[:2]] == ["agrees", "agrees"]
    assert claims[0]["at"] == "dataset=cora, depth=10"


def test_latex_is_balanced_and_escaped():
    text = as_latex(small_report())
    assert r"A small\_table (Table 9)" in text
    assert r"\textbf{79.00 $\pm$ 1.27}" in text
    assert r"50 \% of it" in text
    assert r"At L $\geq$ 10" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "&" in line]
    assert {line.count("&") for line in rows} == {8}
    for environment in ("longtable", "itemize"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}")


@pytest.mark.parametrize("name", [name for name in experiment_names() if name != "datasets"])
def test_every_experiment_can_be_rendered_without_runs(name):
    report = table_report(load_experiment(name), [])
    for render, _ in FORMATS.values():
        assert "missing" in render(report)
    latex = as_latex(report)
    assert latex.isascii(), sorted({character for character in latex if not character.isascii()})


def test_published_digits_are_preserved():
    assert "73.00 ± 3.02" in as_markdown(table_report(load_experiment("sgd"), []))
    assert "77.8 ± 0.9" in as_markdown(table_report(load_experiment("gcn"), []))


def test_rows_are_in_the_order_of_the_grid():
    experiment = small_experiment()
    rows = table_rows(experiment, summarize(experiment, []))
    assert [row.coordinates for row in rows] == [cell.coordinates for cell in experiment.cells]
