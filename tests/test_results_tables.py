"""The tables in the documentation are those of the committed results."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.experiments.parser import experiment_names, further_experiment_names, load_experiment
from equipoise.experiments.results_csv import read_csv
from equipoise.report.summary import Estimate
from equipoise.report.tables import table_report

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


CLAIMS_PAGE = """# Page
<!-- results: claims -->
<!-- end of results -->
<!-- results: further-claims -->
<!-- end of results -->
## Two layers, GAT
<!-- results: gat-v1 -->
<!-- end of results -->
"""


def claims_of(results, links=None):
    """The page's tables of claims: lists of (verdict, claim, comparisons, experiment), and the sentence above each."""
    page = results_tables.updated_page(CLAIMS_PAGE, results, links).partition("## Two")[0]
    tables = [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| **")]
        for part in page.split("<!-- end of results -->")[:2]
    ]
    sentences = [line for line in page.splitlines() if " claims: " in line]
    return tables, sentences


def test_every_claim_has_one_verdict(results):
    (paper, further), sentences = claims_of(results)
    expected = {
        (claim.say, name)
        for name in (*experiment_names(), *further_experiment_names())
        for claim in load_experiment(name).claims
    }
    rows = [(claim, re.search(r"`(.*)`", experiment)[1]) for _, claim, _, experiment in paper + further]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    assert {name for _, name in rows[: len(paper)]} <= set(experiment_names()) - set(results_tables.LATER_PAPERS)
    for table, sentence in zip((paper, further), sentences, strict=True):
        numbers = [int(n) for n in re.findall(r"\*\*(\d+)\*\*", sentence)]
        assert int(sentence.split()[0]) == len(table) == sum(numbers)
        verdicts = [row[0].strip("* ") for row in table]  # may end with "(provisional)"
        assert [sum(verdict.startswith(word) for verdict in verdicts) for word in ("contradicted", "open")] == numbers[
            2:
        ]


def test_claims_are_sorted_by_verdict_and_claims_without_runs_are_last(results):
    (paper, _), _ = claims_of(results)
    order = ["holds", "holds but", "contradicted", "open"]
    ranks = [max(i for i, word in enumerate(order) if row[0].strip("*").startswith(word)) for row in paper]
    assert ranks == sorted(ranks)
    (paper, _), sentences = claims_of([])
    assert {row[0] for row in paper} == {"**open**"}
    assert all(re.fullmatch(r"\d+ pending", row[2]) for row in paper)
    assert sentences[0].endswith(f"**{len(paper)}** are open, {len(paper)} of them for lack of runs.")


def test_claims_link_to_the_table(results):
    (paper, further), _ = claims_of(results, {"calibration": "guide/other.md#gain"})
    links = {row[3] for row in paper + further}
    assert "[`gat-v1`](#two-layers-gat)" in links
    assert "[`calibration`](guide/other.md#gain)" in links
    assert "`gcn`" in links


def test_cells_apart_from_the_paper_are_counted_once(results):
    page = "".join(
        f"<!-- results: {name} -->\n<!-- end of results -->\n"
        for name in ("apart", "gat-v1", "variations-sgd", "variations-adam", "sgd", "inits")
    )
    gat = [run for run in results if run.spec.kind == "gat" and run.spec.dataset == "cora"]
    text = results_tables.updated_page(page, gat)
    assert "overlaps the paper's in **0 of 3** different cells" in text
    assert "| `gat-v1` | cora xav | 81.14 ± 0.79 | 84.50 ± 0.52 | −3.36 |" in text
    sgd = load_experiment("sgd").subset(dataset=["cora"], depth=[5])  # the same cells in three of these experiments
    keys = {spec.key for spec in sgd.specs}
    runs = [run for run in results if run.key in keys]
    text = results_tables.updated_page(page, runs)
    assert text.startswith(
        "<!-- results: apart -->\n\nOur interval overlaps the paper's in **3 of 3** different cells.\n"
    )
    text = results_tables.updated_page(page, [replace(run, test_accuracy=0.99) for run in runs])
    overview = text.partition("<!-- end of results -->")[0]
    assert "**0 of 3** different cells" in overview
    assert overview.count("| 99.00 ± 0.00 |") == 3


def test_readme_has_the_numbers_of_the_results(results):
    """The headline table: rows of layers, then ``xav`` ours and paper, ``bal-o`` ours and paper."""
    report = table_report(load_experiment("sgd"), results)
    numbers = {(row["depth"], row["init"]): row for row in report.records if row["dataset"] == "cora"}
    lines = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("| layers | `xav` | paper |")[2].splitlines()[2:6]
    )
    assert [line.split("|")[1].strip() for line in lines] == ["5", "10", "20", "40"]
    for line in lines:
        depth, *cells = (cell.strip(" *") for cell in line.strip("|").split("|"))
        expected = [
            Estimate(row[value], row[f"{value}_ci"]).text(1) if row[value] is not None else ""
            for row in (numbers[int(depth), "xav"], numbers[int(depth), "bal-o"])
            for value in ("accuracy", "paper_accuracy")
        ]
        assert cells == expected


def test_experiment_without_runs():
    assert "equipoise reproduce sgd" in results_tables.rendered_table(load_experiment("sgd"), [])


def test_cells_above_a_constant_prediction_are_counted_by_data_set(results):
    texas = [run for run in results if run.spec.dataset == "texas"]
    lines = results_tables.rendered_constant(load_experiment("sgd"), texas).splitlines()
    rows = {line.split(" | ")[0].strip("| "): line for line in lines[2:]}
    assert list(rows) == list(load_experiment("sgd").axes["dataset"])
    assert rows["texas"] == "| texas | 37 | 59.5 | 0 of 15 | 0 of 15 |"
    assert rows["cora"] == "| cora | 1000 | 31.9 | no runs yet | 5 of 6 |"
