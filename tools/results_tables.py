"""Write the tables of ``results/runs.csv`` into the pages of the documentation.

A page marks the place of a table by two comments, and everything between them is replaced::

    <!-- results: sgd -->
    <!-- end of results -->

``<!-- results: summary -->`` marks the place of a table with one row per experiment that the page shows.
``python tools/results_tables.py`` rewrites all pages; with ``--check`` it changes nothing and fails if a page is out of
date. Cells without runs are left out. An experiment without published numbers has one column per compared value.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from equipoise.experiments.experiment import Experiment
from equipoise.experiments.parser import load_experiment
from equipoise.experiments.result import Result
from equipoise.experiments.results_csv import read_csv
from equipoise.report.claims import Judgement
from equipoise.report.tables import TableReport, as_markdown, table_report

ROOT = Path(__file__).parent.parent
SUMMARY = "summary"
JUDGEMENTS = get_args(Judgement)
MARKED = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def rendered_table(experiment: Experiment, results: Sequence[Result]) -> str:
    """Render one experiment as Markdown without a heading."""
    report = table_report(experiment, results)
    if not any(record["n"] for record in report.records):
        return f"No runs yet; `equipoise reproduce {experiment.name}` makes them.\n"
    report = _with_runs(report) if experiment.published else _pivoted(report, experiment)
    return as_markdown(report).partition("\n\n")[2].rstrip() + "\n" + _overlaps(report)


def _with_runs(report: TableReport) -> TableReport:
    """Leave out rows without runs."""
    kept = [i for i, record in enumerate(report.records) if record["n"]]
    bold = {(new, column) for new, old in enumerate(kept) for row, column in report.bold if row == old}
    rows, records = [report.rows[i] for i in kept], [report.records[i] for i in kept]
    return replace(report, rows=rows, records=records, bold=frozenset(bold))


def _pivoted(report: TableReport, experiment: Experiment) -> TableReport:
    """One row per group of compared cells, with one column per compared value; bold where it is the best."""
    axes = len(experiment.axes) - 1  # the compared axis is the last
    ours = report.columns.index("ours")
    values = list(dict.fromkeys(record[experiment.compare] for record in report.records))
    groups: dict[tuple[str, ...], dict[object, tuple[str, bool]]] = {}
    for i, record in enumerate(report.records):
        if record["n"]:
            cell = f"{report.rows[i][ours]} (n = {record['n']})"
            groups.setdefault(tuple(report.rows[i][:axes]), {})[record[experiment.compare]] = cell, bool(record["best"])
    rows = [[*key, *(cells.get(value, ("", False))[0] for value in values)] for key, cells in groups.items()]
    bold = {
        (i, axes + j)
        for i, cells in enumerate(groups.values())
        for j, value in enumerate(values)
        if cells.get(value, ("", False))[1]
    }
    columns = [*report.columns[:axes], *map(str, values)]
    return replace(report, columns=columns, rows=rows, bold=frozenset(bold))


def _overlaps(report: TableReport) -> str:
    compared = [record["overlap"] for record in report.records if record.get("overlap") is not None]
    if not compared:
        return ""
    return f"\nOur interval overlaps the paper's in {sum(map(bool, compared))} of {len(compared)} cells.\n"


def rendered_summary(names: Sequence[str], results: Sequence[Result]) -> str:
    """Render one row per experiment as Markdown: runs, complete cells, cells that agree with the paper, claims."""
    header = ("experiment", "runs", "complete cells", "intervals overlap", *JUDGEMENTS)
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name in names:
        report = table_report(load_experiment(name), results)
        cells = [record["status"] for record in report.records]
        runs, wanted = (sum(int(str(record[key])) for record in report.records) for key in ("n", "wanted"))
        overlaps = [record["overlap"] for record in report.records if record.get("overlap") is not None]
        row = [f"`{name}`", f"{runs} of {wanted}", f"{cells.count('complete')} of {len(cells)}"]
        row += [f"{sum(map(bool, overlaps))} of {len(overlaps)}" if overlaps else ""]
        judged = [claim.judgement for claim in report.claims]
        row += [str(judged.count(judgement) or "") for judgement in JUDGEMENTS]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def updated_page(text: str, results: Sequence[Result]) -> str:
    """Return a page with the tables between its marks replaced."""
    names = [match["name"] for match in MARKED.finditer(text) if match["name"] != SUMMARY]

    def table(match: re.Match[str]) -> str:
        if match["name"] == SUMMARY:
            return f"{match[1]}\n{rendered_summary(names, results)}\n{match[3]}"
        return f"{match[1]}\n{rendered_table(load_experiment(match['name']), results)}\n{match[3]}"

    return MARKED.sub(table, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite or check all pages; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the tables of results/runs.csv into the documentation.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    options: Any = parser.parse_args(arguments)
    results = list(read_csv(ROOT / "results" / "runs.csv"))
    outdated = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = updated_page(text, results) if "<!-- results:" in text else text
        if new != text:
            outdated.append(page)
            if not options.check:
                page.write_text(new, encoding="utf-8")
    for page in outdated:
        print(f"{'out of date' if options.check else 'written'}: {page.relative_to(ROOT)}")
    return 1 if options.check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
