"""A target as a table of text: ours beside the paper's, and below it the claims with the numbers that decide them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from equipoise.experiments.experiment import Experiment
from equipoise.report.claims import Comparison, Verdict, decide, decide_published
from equipoise.report.comparison import Row, compare
from equipoise.report.findings import findings
from equipoise.report.frames import Frames
from equipoise.report.summary import Estimate, Finished, summarize

TITLES = {"dataset": "data set", "depth": "L", "init": "start", "variant": "variation"}
MISSING = "missing"
SHOWN = 6  # comparisons of a claim that are written out


@dataclass(frozen=True)
class Line:
    """One claim: the word, what is claimed, where, and the numbers."""

    word: str
    say: str
    source: str
    numbers: str


@dataclass(frozen=True)
class Report:
    """Everything that is written about a target, before it is Markdown, LaTeX or CSV.

    Attributes:
        name, title, source: of the experiment.
        status: one sentence: how many runs there are.
        columns, rows: the table, as text.
        bold: (row, column) of what is the best of its group.
        claims: the claims, one line each.
        findings: what recordings show, a sentence each.
        notes: what a reader should know.
        records: the table for programs, one record a row.
        comparisons: the claims for programs, one record a comparison.
    """

    name: str
    title: str
    source: str
    status: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]]
    claims: Sequence[Line]
    notes: Sequence[str]
    records: Sequence[dict[str, object]]
    comparisons: Sequence[dict[str, object]] = ()
    findings: Sequence[str] = ()


def report(experiment: Experiment, results: Iterable[Finished], frames: Frames | None = None) -> Report:
    """The report of a table or figure of runs; with their recordings, it says what these show."""
    summaries = summarize(experiment, results)
    rows = compare(experiment, summaries)
    columns = [*(TITLES.get(axis, axis) for axis in experiment.axes), "ours", "n", "epochs to best"]
    if experiment.published:
        columns += ["paper", "difference", "intervals"]
    if told := any(row.paper_epochs for row in rows):
        columns += ["paper's epochs"]
    texts = [_texts(row, bool(experiment.published), told) for row in rows]
    ours, paper = len(experiment.axes), len(experiment.axes) + 3
    bold = {(i, ours) for i, row in enumerate(rows) if row.best}
    bold |= {(i, paper) for i, row in enumerate(rows) if row.paper_best}
    verdicts = decide(experiment, summaries)
    return Report(
        name=experiment.name,
        title=experiment.title,
        source=experiment.source,
        status=_status(rows, experiment.remark),
        columns=columns,
        rows=texts,
        bold=frozenset(bold),
        claims=[_line(ours, paper) for ours, paper in zip(verdicts, decide_published(experiment), strict=True)],
        notes=experiment.notes,
        records=[_record(experiment, row) for row in rows],
        comparisons=[_comparison(verdict, comparison) for verdict in verdicts for comparison in verdict.comparisons],
        findings=[] if frames is None else findings(experiment, frames),
    )


def _texts(row: Row, published: bool, told: bool) -> list[str]:
    ours, digits = row.ours, row.digits
    n = f"{ours.n}/{ours.wanted}"
    for count, word in ((ours.diverged, "diverged"), (ours.failed, "failed")):
        n += f", {count} {word}" if count else ""
    texts = [*map(str, row.at), _text(ours.accuracy, digits, MISSING), n, _text(ours.epochs, 0)]
    if published:
        difference = "" if row.difference is None else _signed(row.difference, digits)
        texts += [_text(row.paper, digits), difference, {True: "overlap", False: "apart", None: ""}[row.overlap]]
    return texts + [_text(row.paper_epochs, 0)] * told


def _text(estimate: Estimate | None, digits: int, otherwise: str = "") -> str:
    return estimate.text(digits) if estimate else otherwise


def _status(rows: Sequence[Row], remark: str) -> str:
    done, wanted = sum(row.ours.n for row in rows), sum(row.ours.wanted for row in rows)
    diverged, failed = (sum(getattr(row.ours, what) for row in rows) for what in ("diverged", "failed"))
    missing = sum(row.ours.n == 0 for row in rows)
    parts = [f"{done} of {wanted} runs", f"{missing} of {len(rows)} cells missing" if missing else "no cell missing"]
    parts += [f"{diverged} diverged"] * bool(diverged) + [f"{failed} failed"] * bool(failed)
    parts += [remark] * bool(remark)
    return ", ".join(parts)


def _line(ours: Verdict, paper: Verdict) -> Line:
    unit = "points" if ours.claim.measure == "accuracy" else "epochs"
    total, decided = len(ours.comparisons), ours.decided
    numbers = f"true in {ours.true} of {total} comparisons" if decided else f"none of {total} comparisons has its runs"
    if decided:
        lacking = f", {total - len(decided)} still without runs" if len(decided) < total else ""
        mean = sum(comparison.lead or 0.0 for comparison in decided) / len(decided)
        numbers += f"{lacking}, by {_signed(mean)} {unit} on average"
        deciding = _deciding(ours)
        numbers += "".join(f"; {_told(comparison, ours)}" for comparison in deciding[:SHOWN])
        numbers += f"; and {len(deciding) - SHOWN} more" if len(deciding) > SHOWN else ""
    if paper.decided:
        numbers += f". By the paper's numbers: true in {paper.true} of {len(paper.decided)}"
    return Line(ours.word, ours.claim.say, ours.claim.source, numbers + ".")


def _deciding(verdict: Verdict) -> list[Comparison]:
    """What decides: the comparisons against it where there are any, else the closest one."""
    by_lead = sorted(verdict.decided, key=lambda comparison: comparison.lead or 0.0)
    return [comparison for comparison in by_lead if not comparison.true] or by_lead[:1]


def _told(comparison: Comparison, verdict: Verdict) -> str:
    digits = 1 if verdict.claim.measure == "accuracy" else 0
    pairs = " → ".join(f"{_text(better, digits)} against {_text(worse, digits)}" for better, worse in comparison.pairs)
    place = " ".join(f"L = {value}" if axis == "depth" else str(value) for axis, value in comparison.place.items())
    return f"{'closest' if comparison.true else 'not'} {place}".rstrip() + f": {pairs}"


def _signed(number: float, digits: int = 1) -> str:
    """With its sign, unless it is zero as written."""
    text = f"{number:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def _record(experiment: Experiment, row: Row) -> dict[str, object]:
    ours, place = row.ours, dict(zip(experiment.axes, row.at, strict=True))
    return {
        **place,
        "status": MISSING if ours.n == 0 else "complete" if ours.n >= ours.wanted else "partial",
        **_numbers("accuracy", ours.accuracy),
        **_numbers("epochs", ours.epochs),
        "n": ours.n,
        "wanted": ours.wanted,
        "diverged": ours.diverged,
        "failed": ours.failed,
        "best": row.best,
        **_numbers("paper_accuracy", row.paper),
        **_numbers("paper_epochs", row.paper_epochs),
        "difference": row.difference,
        "overlap": row.overlap,
    }


def _numbers(name: str, estimate: Estimate | None) -> dict[str, object]:
    ci = estimate.ci if estimate and estimate.ci == estimate.ci else None
    return {name: estimate.mean if estimate else None, f"{name}_ci": ci}


def _comparison(verdict: Verdict, comparison: Comparison) -> dict[str, object]:
    (better, worse) = comparison.pairs[-1]
    return {
        "claim": verdict.claim.say,
        "verdict": verdict.word,
        "measure": verdict.claim.measure,
        "at": ", ".join(f"{name}={value}" for name, value in comparison.place.items()),
        **_numbers("better", better),
        **_numbers("worse", worse),
        "lead": comparison.lead,
        "true": comparison.true,
    }
