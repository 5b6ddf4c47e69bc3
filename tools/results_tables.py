"""Write the tables of ``results/runs.csv`` into the pages of the documentation.

A page marks the place of a table by two comments, and everything between them is replaced::

    <!-- results: sgd -->
    <!-- end of results -->

Five names stand for overviews, of the experiments that the page shows or of Table 2:

- ``summary``: one row per experiment;
- ``claims``: the verdict on every claim of the paper, also of experiments that the page does not show;
- ``further-claims``: the same for the other experiments, ours and those of later papers;
- ``apart``: the number of cells whose interval overlaps the published one, and a table of the others;
- ``constant``: the data sets of Table 2 with the score of a constant prediction and the number of cells above it.

``python tools/results_tables.py`` rewrites all pages; with ``--check`` it changes nothing and fails if a page is out of
date. Cells without runs are left out. An experiment without published numbers has one column per compared value.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from equipoise.data.catalog import dataset_info
from equipoise.experiments.experiment import Experiment
from equipoise.experiments.parser import experiment_names, further_experiment_names, load_experiment
from equipoise.experiments.result import Result
from equipoise.experiments.results_csv import read_csv
from equipoise.report.claims import Judgement
from equipoise.report.formats import as_markdown
from equipoise.report.summary import summarize, table_rows
from equipoise.report.tables import TableReport, table_report

ROOT = Path(__file__).parent.parent
OVERVIEWS = ("summary", "claims", "further-claims", "apart", "constant")
LATER_PAPERS = ("dynamic-rescaling",)  # reproduced like the paper, but not its claims
JUDGEMENTS = get_args(Judgement)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
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


def rendered_claims(names: Sequence[str], results: Sequence[Result], links: Mapping[str, str]) -> str:
    """Render the verdict on every claim of these experiments: counts first, then one row per claim by verdict.

    Args:
        names: experiments in the order of the page.
        results: results of any runs.
        links: experiment → link to its table.

    Returns:
        Markdown.
    """
    claims = [(name, claim) for name in names for claim in table_report(load_experiment(name), results).claims]
    claims.sort(key=lambda pair: (JUDGEMENTS.index(pair[1].judgement), not pair[1].has_runs))
    counts = Counter(claim.judgement for _, claim in claims)
    words = {"holds": ("holds", "hold"), "holds but for noise": ("holds but for noise", "hold but for noise")}
    words |= {"contradicted": ("is contradicted", "are contradicted"), "open": ("is open", "are open")}
    phrases = [
        f"**{counts[judgement]}** {one if counts[judgement] == 1 else more}" for judgement, (one, more) in words.items()
    ]
    phrases += [f"{sum(claim.lacks_runs for _, claim in claims)} of them for lack of runs"]
    header = ("verdict", "claim", "comparisons", "experiment")
    lines = [
        f"{len(claims)} claims: {', '.join(phrases)}.",
        "",
        f"| {' | '.join(header)} |",
        "|---" * len(header) + "|",
    ]
    for name, claim in claims:
        link = f"[`{name}`]({links[name]})" if name in links else f"`{name}`"
        lines.append(f"| **{claim.verdict}** | {claim.statement} | {claim.summary} | {link} |")
    return "\n".join(lines) + "\n"


def rendered_apart(names: Sequence[str], results: Sequence[Result]) -> str:
    """Count the cells whose interval overlaps the published one, and tabulate the others.

    Args:
        names: experiments in the order of the page.
        results: results of any runs.

    Returns:
        Markdown. Cells of two experiments with the same runs and the same published number count once.
    """
    overlaps: dict[object, bool] = {}
    rows = []
    for name in names:
        experiment = load_experiment(name)
        report = table_report(experiment, results)
        column = {title: index for index, title in enumerate(report.columns)}
        for cell, record, row in zip(experiment.cells, report.records, report.rows, strict=True):
            identity = (frozenset(spec.key for spec in cell.specs), record["paper_accuracy"])
            if record["overlap"] is not None and identity not in overlaps:
                overlaps[identity] = bool(record["overlap"])
                if not record["overlap"]:
                    settings = zip(experiment.axes, cell.coordinates, strict=True)
                    at = " ".join(f"L = {value}" if axis == "depth" else str(value) for axis, value in settings)
                    cells = [f"`{name}`", at, *(row[column[key]] for key in ("ours", "paper", "difference"))]
                    rows.append(f"| {' | '.join(cells)} |")
    text = f"Our interval overlaps the paper's in **{sum(overlaps.values())} of {len(overlaps)}** different cells.\n"
    header = ("experiment", "cell", "ours", "paper", "difference")
    return "\n".join([text, f"| {' | '.join(header)} |", "|---" * len(header) + "|", *rows, ""]) if rows else text


def rendered_constant(experiment: Experiment, results: Sequence[Result]) -> str:
    """Tabulate by data set the score of a constant prediction and how many cells are above it, ours and published.

    Args:
        experiment: an experiment with several data sets.
        results: results of any runs.

    Returns:
        Markdown. A cell is above if its whole interval is.
    """
    rows = table_rows(experiment, summarize(experiment, results))
    header = ("data set", "test nodes", "a constant prediction", "ours: cells above it", "paper: cells above it")
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for dataset in experiment.axes["dataset"]:
        info = dataset_info(str(dataset))
        own = [row for row in rows if dataset in row.coordinates]
        counts = []
        for estimates in ([row.ours.accuracy for row in own], [row.paper for row in own]):
            known = [one.mean - (0.0 if math.isnan(one.ci) else one.ci) for one in estimates if one]
            above = sum(low > info.constant_score for low in known)
            counts.append(f"{above} of {len(known)}" if known else "no runs yet")
        lines.append(f"| {dataset} | {info.split[2]} | {info.constant_score:.1f} | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n"


def page_anchors(text: str) -> dict[str, str]:
    """Return the anchor of the section with the table of each experiment, as MyST and GitHub form it."""
    anchors = {}
    for match in MARKED.finditer(text):
        headings = HEADING.findall(text, 0, match.start())
        if match["name"] not in OVERVIEWS and headings:
            anchors[match["name"]] = re.sub(r"[^\w\- ]", "", headings[-1].lower()).replace(" ", "-")
    return anchors


def updated_page(text: str, results: Sequence[Result], links: Mapping[str, str] | None = None) -> str:
    """Return a page with the tables between its marks replaced.

    Args:
        text: the page.
        results: results of any runs.
        links: experiment → link to its table on another page.

    Returns:
        The page.
    """
    names = [match["name"] for match in MARKED.finditer(text) if match["name"] not in OVERVIEWS]
    own = [name for name in (*further_experiment_names(), *LATER_PAPERS) if name not in names]
    paper = [name for name in names if name in experiment_names() and name not in LATER_PAPERS]
    paper += [name for name in experiment_names() if name not in (*paper, *LATER_PAPERS)]
    further = [name for name in names if name not in paper] + own

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        known = {**(links or {}), **{shown: f"#{anchor}" for shown, anchor in page_anchors(text).items()}}
        overviews = {
            "summary": lambda: rendered_summary(names, results),
            "claims": lambda: rendered_claims(paper, results, known),
            "further-claims": lambda: rendered_claims(further, results, known),
            "apart": lambda: rendered_apart(names, results),
            "constant": lambda: rendered_constant(load_experiment("sgd"), results),
        }
        content = overviews[name]() if name in overviews else rendered_table(load_experiment(name), results)
        return f"{match[1]}\n{content}\n{match[3]}"

    return MARKED.sub(table, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite or check all pages; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the tables of results/runs.csv into the documentation.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    options: Any = parser.parse_args(arguments)
    results = list(read_csv(ROOT / "results" / "runs.csv"))
    outdated = []
    pages = [
        page for page in sorted((ROOT / "docs").rglob("*.md")) if "<!-- results:" in page.read_text(encoding="utf-8")
    ]
    anchors = {page: page_anchors(page.read_text(encoding="utf-8")) for page in pages}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        links = {
            name: f"{os.path.relpath(other, page.parent)}#{anchor}"
            for other in pages
            for name, anchor in anchors[other].items()
        }
        new = updated_page(text, results, links)
        if new != text:
            outdated.append(page)
            if not options.check:
                page.write_text(new, encoding="utf-8")
    for page in outdated:
        print(f"{'out of date' if options.check else 'written'}: {page.relative_to(ROOT)}")
    return 1 if options.check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
