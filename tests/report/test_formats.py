import csv
import io
import re
from dataclasses import replace

import pytest

from equipoise.experiments.parser import experiment_names, load_experiment, parse_experiment
from equipoise.report.formats import FORMATS, as_csv, as_latex, as_markdown, records_csv
from equipoise.report.tables import table_report
from tests.report.runs import SMALL, small_report


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
        "paper_accuracy,paper_accuracy_ci,paper_epochs,paper_epochs_ci,difference,overlap,metric,constant"
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
