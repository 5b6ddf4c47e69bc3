"""Report on one experiment: our numbers next to the published ones and the judged claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from equipoise.data.catalog import METRIC_TITLES
from equipoise.experiments.experiment import Experiment
from equipoise.report.claim_text import ClaimText, claim_text
from equipoise.report.claims import Comparison, Verdict, judge_claims, judge_published
from equipoise.report.depth_chart import Panel, depth_panels
from equipoise.report.describe import describe_recordings
from equipoise.report.frames import FrameLoader
from equipoise.report.summary import (
    MISSING,
    TIE,
    Estimate,
    RunResult,
    TableRow,
    estimate_text,
    signed_text,
    summarize,
    table_rows,
)

COLUMN_TITLES = {"dataset": "data set", "depth": "L", "variant": "variation"}


@dataclass(frozen=True)
class TableReport:
    """Report on one experiment, independent of the output format.

    Attributes:
        name, title, source: those of the experiment.
        status: number of runs, as a phrase.
        columns, rows: the table as text.
        bold: (row, column) of the best values of each group.
        claims: judged claims.
        notes: notes of the experiment, and what a constant prediction scores.
        records: the table with full precision, one record per row.
        comparisons: the claims with full precision, one record per comparison.
        observations: sentences that describe the recordings.
        panels: accuracy against depth, for the page.
    """

    name: str
    title: str
    source: str
    status: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]]
    claims: Sequence[ClaimText]
    notes: Sequence[str]
    records: Sequence[dict[str, object]]
    comparisons: Sequence[dict[str, object]] = ()
    observations: Sequence[str] = ()
    panels: Sequence[Panel] = ()


def table_report(
    experiment: Experiment, results: Iterable[RunResult], load_frame: FrameLoader | None = None
) -> TableReport:
    """Build the report of an experiment.

    Args:
        experiment: table or figure of the paper, or an experiment of one's own.
        results: results of any runs; those of other experiments are ignored.
        load_frame: loads recordings by run key; without it the report has no observations.

    Returns:
        The report.
    """
    summaries = summarize(experiment, results)
    rows = table_rows(experiment, summaries)
    has_metric = any(row.ours.metric != "accuracy" for row in rows)
    columns = [*(COLUMN_TITLES.get(axis, axis) for axis in experiment.axes), *["metric"] * has_metric]
    ours, paper = len(columns), len(columns) + 3
    columns += ["ours", "n", "epochs to best"]
    if experiment.published:
        columns += ["paper", "difference", "intervals"]
    if has_epochs := any(row.paper_epochs for row in rows):
        columns += ["paper's epochs"]
    bold = {(i, ours) for i, row in enumerate(rows) if row.best}
    bold |= {(i, paper) for i, row in enumerate(rows) if row.paper_best}
    verdicts = judge_claims(experiment, summaries)
    return TableReport(
        name=experiment.name,
        title=experiment.title,
        source="Our own experiment" if experiment.source == "ours" else experiment.source,
        status=_status(rows, experiment.remark),
        columns=columns,
        rows=[_row_cells(row, has_metric, bool(experiment.published), has_epochs) for row in rows],
        bold=frozenset(bold),
        claims=[claim_text(*pair) for pair in zip(verdicts, judge_published(experiment), strict=True)],
        notes=[*experiment.notes, *_constant_notes(experiment, rows)],
        records=[_row_record(experiment, row) for row in rows],
        comparisons=[_comparison_record(verdict, one) for verdict in verdicts for one in verdict.comparisons],
        panels=depth_panels(experiment, rows),
        observations=[] if load_frame is None else describe_recordings(experiment, load_frame),
    )


def _constant_notes(experiment: Experiment, rows: Sequence[TableRow]) -> list[str]:
    """Say what a constant prediction scores and how many cells are not better; nothing without runs."""
    finished = [row.ours for row in rows if row.ours.accuracy]
    if not finished:
        return []
    scores = {
        cell.specs[0].dataset: f"{row.ours.constant:.1f}"
        for cell, row in zip(experiment.cells, rows, strict=True)
        if row.ours.accuracy
    }
    no_better = sum(summary.accuracy.mean <= summary.constant + TIE for summary in finished if summary.accuracy)
    listed = ", ".join(f"{score} ({dataset})" for dataset, score in scores.items())
    count = f"{no_better} of {len(finished)} cells do not exceed it" if no_better else "all cells exceed it"
    return [f"A constant prediction, the largest class of the test nodes, scores {listed}; {count}."]


def _row_cells(row: TableRow, has_metric: bool, published: bool, has_epochs: bool) -> list[str]:
    ours, digits = row.ours, row.digits
    n = f"{ours.n}/{ours.expected}"
    for count, outcome in ((ours.diverged, "diverged"), (ours.failed, "failed")):
        n += f", {count} {outcome}" if count else ""
    cells = [*map(str, row.coordinates), *[METRIC_TITLES[ours.metric]] * has_metric]
    cells += [estimate_text(ours.accuracy, digits, MISSING), n, estimate_text(ours.epochs, 0)]
    if published:
        difference = "" if row.difference is None else signed_text(row.difference, digits)
        cells += [
            estimate_text(row.paper, digits),
            difference,
            {True: "overlap", False: "apart", None: ""}[row.overlap],
        ]
    return cells + [estimate_text(row.paper_epochs, 0)] * has_epochs


def _status(rows: Sequence[TableRow], remark: str) -> str:
    done, expected = sum(row.ours.n for row in rows), sum(row.ours.expected for row in rows)
    diverged, failed = sum(row.ours.diverged for row in rows), sum(row.ours.failed for row in rows)
    missing = sum(row.ours.n == 0 for row in rows)
    phrases = [f"{done} of {expected} runs"]
    phrases += [f"{missing} of {len(rows)} cells missing" if missing else "no cell missing"]
    phrases += [f"{diverged} diverged"] * bool(diverged) + [f"{failed} failed"] * bool(failed)
    phrases += [remark] * bool(remark)
    return ", ".join(phrases)


def _row_record(experiment: Experiment, row: TableRow) -> dict[str, object]:
    ours = row.ours
    return {
        **dict(zip(experiment.axes, row.coordinates, strict=True)),
        "status": MISSING if ours.n == 0 else "complete" if ours.n >= ours.expected else "partial",
        **_estimate_record("accuracy", ours.accuracy),
        **_estimate_record("epochs", ours.epochs),
        "n": ours.n,
        "wanted": ours.expected,
        "diverged": ours.diverged,
        "failed": ours.failed,
        "best": row.best,
        **_estimate_record("paper_accuracy", row.paper),
        **_estimate_record("paper_epochs", row.paper_epochs),
        "difference": row.difference,
        "overlap": row.overlap,
        "metric": ours.metric,
        "constant": ours.constant,
    }


def _comparison_record(verdict: Verdict, comparison: Comparison) -> dict[str, object]:
    (better, worse) = comparison.pairs[-1]
    return {
        "claim": verdict.claim.say,
        "verdict": verdict.text,
        "measure": verdict.claim.measure,
        "at": ", ".join(f"{name}={value}" for name, value in comparison.settings.items()),
        **_estimate_record("better", better),
        **_estimate_record("worse", worse),
        "lead": comparison.lead,
        "finding": comparison.finding,
        "means_agree": comparison.means_agree,
    }


def _estimate_record(name: str, estimate: Estimate | None) -> dict[str, object]:
    ci = estimate.ci if estimate and estimate.ci == estimate.ci else None  # NaN becomes an empty field
    return {name: estimate.mean if estimate else None, f"{name}_ci": ci}
