"""Report on one experiment: our numbers next to the published ones and the judged claims, as Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from equipoise.data.catalog import METRIC_TITLES
from equipoise.experiments.experiment import Experiment
from equipoise.inert_text import escape_formula
from equipoise.report.claims import Comparison, Judgement, Verdict, judge_claims, judge_published
from equipoise.report.depth_chart import Panel, depth_panels
from equipoise.report.describe import describe_recordings
from equipoise.report.frames import FrameLoader
from equipoise.report.summary import Estimate, RunResult, TableRow, summarize, table_rows

COLUMN_TITLES = {"dataset": "data set", "depth": "L", "variant": "variation"}
MISSING = "missing"
PENDING = "pending"  # a comparison without two runs in each cell, or all runs of a smaller one
MAX_COMPARISONS = 6  # comparisons of a claim that are written out
HTML_TAG = re.compile(r"<(?=[A-Za-z/!?])")  # Markdown passes tags on to the page; a name may contain one


@dataclass(frozen=True)
class ClaimText:
    """A judged claim as text.

    Attributes:
        judgement: one of the four judgements.
        verdict: the judgement in words, with *provisional* where it applies.
        statement, source: those of the claim.
        evidence: the numbers that it rests on.
        counts: what comparisons say about the claim → number of comparisons, from agreement to pending.
        columns, comparisons: the table of its comparisons.
    """

    judgement: Judgement
    verdict: str
    statement: str
    source: str
    evidence: str
    counts: Mapping[str, int]
    columns: Sequence[str] = ()
    comparisons: Sequence[Sequence[str]] = ()

    @property
    def has_runs(self) -> bool:
        """Whether any of its comparisons has enough runs."""
        return self.counts[PENDING] < sum(self.counts.values())

    @property
    def lacks_runs(self) -> bool:
        """Whether the claim is open and more runs are planned that may decide it."""
        return self.judgement == "open" and self.counts[PENDING] > 0

    @property
    def summary(self) -> str:
        """The counts in few words: ``12 of 27 agree, 6 noise, 9 pending``."""
        total = sum(self.counts.values())
        if not self.has_runs:
            return f"{total} {PENDING}"
        noise = sum(count for kind, count in self.counts.items() if kind.startswith("within the noise"))
        contradict = self.counts["contradict"]
        others = {"noise": noise, f"contradict{'s' * (contradict == 1)}": contradict, PENDING: self.counts[PENDING]}
        phrases = [f"{self.counts['agree']} of {total} agree", *(f"{n} {kind}" for kind, n in others.items() if n)]
        return ", ".join(phrases)


@dataclass(frozen=True)
class TableReport:
    """Report on one experiment, independent of the output format.

    Attributes:
        name, title, source: those of the experiment.
        status: number of runs, as a phrase.
        columns, rows: the table as text.
        bold: (row, column) of the best values of each group.
        claims: judged claims.
        notes: notes of the experiment.
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
        claims=[_claim_text(*pair) for pair in zip(verdicts, judge_published(experiment), strict=True)],
        notes=experiment.notes,
        records=[_row_record(experiment, row) for row in rows],
        comparisons=[_comparison_record(verdict, one) for verdict in verdicts for one in verdict.comparisons],
        panels=depth_panels(experiment, rows),
        observations=[] if load_frame is None else describe_recordings(experiment, load_frame),
    )


def _row_cells(row: TableRow, has_metric: bool, published: bool, has_epochs: bool) -> list[str]:
    ours, digits = row.ours, row.digits
    n = f"{ours.n}/{ours.expected}"
    for count, outcome in ((ours.diverged, "diverged"), (ours.failed, "failed")):
        n += f", {count} {outcome}" if count else ""
    cells = [*map(str, row.coordinates), *[METRIC_TITLES[ours.metric]] * has_metric]
    cells += [_text(ours.accuracy, digits, MISSING), n, _text(ours.epochs, 0)]
    if published:
        difference = "" if row.difference is None else _signed(row.difference, digits)
        cells += [_text(row.paper, digits), difference, {True: "overlap", False: "apart", None: ""}[row.overlap]]
    return cells + [_text(row.paper_epochs, 0)] * has_epochs


def _text(estimate: Estimate | None, digits: int, default: str = "") -> str:
    return estimate.text(digits) if estimate else default


def _status(rows: Sequence[TableRow], remark: str) -> str:
    done, expected = sum(row.ours.n for row in rows), sum(row.ours.expected for row in rows)
    diverged, failed = sum(row.ours.diverged for row in rows), sum(row.ours.failed for row in rows)
    missing = sum(row.ours.n == 0 for row in rows)
    phrases = [f"{done} of {expected} runs"]
    phrases += [f"{missing} of {len(rows)} cells missing" if missing else "no cell missing"]
    phrases += [f"{diverged} diverged"] * bool(diverged) + [f"{failed} failed"] * bool(failed)
    phrases += [remark] * bool(remark)
    return ", ".join(phrases)


def _claim_text(ours: Verdict, paper: Verdict) -> ClaimText:
    unit = "points" if ours.claim.measure == "accuracy" else "epochs"
    total, decided = len(ours.comparisons), ours.decided
    if decided:
        mean = sum(comparison.lead or 0.0 for comparison in decided) / len(decided)
        key = _key_comparisons(ours)
        sentence = f"{_count_text(ours)}; mean lead {_signed(mean)} {unit}"
        sentence += "".join(f"; {_comparison_text(comparison, ours)}" for comparison in key[:MAX_COMPARISONS])
        sentence += f"; and {len(key) - MAX_COMPARISONS} more" if len(key) > MAX_COMPARISONS else ""
    else:
        sentence = f"{total} comparison{'s' if total != 1 else ''} {PENDING}"
    if ours.provisional:
        sentence += f". Provisional: {ours.provisional}"
    if paper.decided:
        published = replace(paper, comparisons=tuple(paper.decided))
        sentence += f". Published numbers: {_count_text(published)}"
    return ClaimText(
        judgement=ours.judgement,
        verdict=ours.text,
        statement=ours.claim.say,
        source=ours.claim.source,
        evidence=sentence + ".",
        counts={
            "agree": ours.count("agrees"),
            "within the noise, means agree": ours.leaning,
            "within the noise, means do not agree": ours.count("within the noise") - ours.leaning,
            "contradict": ours.count("contradicts"),
            PENDING: total - len(decided),
        },
        columns=["at", "better", "worse", f"lead ({unit})", "finding", "paper"],
        comparisons=[
            [
                *_comparison_cells(comparison, ours),
                _finding_text(comparison) or PENDING,
                _finding_text(published),
            ]
            for comparison, published in zip(ours.comparisons, paper.comparisons, strict=True)
        ],
    )


def _count_text(verdict: Verdict) -> str:
    """Count the comparisons by what they say about the claim; the parts add up to their number."""
    total, noise, leaning = len(verdict.comparisons), verdict.count("within the noise"), verdict.leaning
    counts = {
        f"{noise} within the noise (means agree in {leaning or 'none'})": noise,
        f"{verdict.count('contradicts')} contradicting": verdict.count("contradicts"),
        f"{total - len(verdict.decided)} {PENDING}": total - len(verdict.decided),
    }
    agreeing = f"{verdict.count('agrees')} of {total} comparison{'s' if total != 1 else ''} agreeing"
    return ", ".join([agreeing, *(text for text, count in counts.items() if count)])


def _finding_text(comparison: Comparison) -> str:
    """What a comparison says about its claim; empty while a number is missing."""
    leaning = comparison.finding == "within the noise" and comparison.means_agree
    return f"{comparison.finding or ''}{' (means agree)' if leaning else ''}"


def _key_comparisons(verdict: Verdict) -> list[Comparison]:
    """Return the contradictions, then those within the noise whose means do not agree; if none, the closest one."""
    ordered = sorted(verdict.decided, key=lambda one: (one.finding != "contradicts", one.surplus or 0.0))
    return [comparison for comparison in ordered if not comparison.means_agree] or ordered[:1]


def _comparison_text(comparison: Comparison, verdict: Verdict) -> str:
    at, better, worse, _ = _comparison_cells(comparison, verdict)
    pairs = " → ".join(f"{b} against {w}" for b, w in zip(better.split(" → "), worse.split(" → "), strict=True))
    finding = "closest" if comparison.means_agree else str(comparison.finding)
    return f"{finding} {f'at {at}' if at else ''}".rstrip() + f": {pairs}"


def _comparison_cells(comparison: Comparison, verdict: Verdict) -> list[str]:
    """Settings, both sides and the lead of a comparison as text."""
    digits = 1 if verdict.claim.measure == "accuracy" else 0
    settings = " ".join(
        f"L = {value}" if axis == "depth" else str(value) for axis, value in comparison.settings.items()
    )
    sides = zip(*comparison.pairs, strict=True)
    better, worse = (" → ".join(_text(estimate, digits, MISSING) for estimate in side) for side in sides)
    return [settings, better, worse, "" if comparison.lead is None else _signed(comparison.lead, digits)]


def _signed(number: float, digits: int = 1) -> str:
    """Format a number with its sign; without one if it rounds to zero."""
    text = f"{number:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


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


LATEX_ESCAPES = {
    **{"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "^": r"\^{}"},
    **{"±": r"$\pm$", "≥": r"$\geq$", "≤": r"$\leq$", "−": "$-$", "→": r"$\to$", "≠": r"$\neq$", "≈": r"$\approx$"},
    **{"ω": r"$\omega$", "δ": r"$\delta$", "‖": r"$\|$", "∇": r"$\nabla$", "×": r"$\times$", "₀": "$_0$"},
    **{"<": "$<$", ">": "$>$", "…": r"\ldots{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"},
}


def as_markdown(report: TableReport) -> str:
    """Render a heading, the table with aligned columns, claims, observations and notes."""
    rows = [
        [f"**{_markdown(cell)}**" if (i, j) in report.bold else _markdown(cell) for j, cell in enumerate(row)]
        for i, row in enumerate(report.rows)
    ]
    columns = [*map(_markdown, report.columns)]
    widths = [max(3, *(len(row[j]) for row in [columns, *rows])) for j in range(len(columns))]
    lines = [f"## {report.name}: {report.title}", "", f"{report.source}. {report.status}.".removeprefix(". "), ""]
    lines += [_markdown_row(columns, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    lines += [_markdown_row(row, widths) for row in rows]
    claims = [
        f"**{claim.verdict}**: {claim.statement}{_parenthesis(claim.source)} {claim.evidence}"
        for claim in report.claims
    ]
    observations = [_capitalize(sentence) for sentence in report.observations]
    for heading, items in (("Claims", claims), ("Observations", observations), ("Notes", report.notes)):
        if items:
            lines += ["", f"{heading}:", "", *(f"- {item}" for item in items)]
    return HTML_TAG.sub("&lt;", "\n".join(lines) + "\n")


def as_latex(report: TableReport) -> str:
    """Render a ``longtable`` (packages booktabs and longtable) and lists of claims, observations and notes."""
    lines = [
        r"% \usepackage{booktabs, longtable}",
        rf"\begin{{longtable}}{{{'l' * len(report.columns)}}}",
        rf"\caption{{{_latex(report.title)} ({_latex(report.source or report.name)}). {_latex(report.status)}.}}\\",
        r"\toprule",
        " & ".join(map(_latex, report.columns)) + r" \\ \midrule \endhead",
    ]
    for i, row in enumerate(report.rows):
        cells = [rf"\textbf{{{_latex(cell)}}}" if (i, j) in report.bold else _latex(cell) for j, cell in enumerate(row)]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{longtable}"]
    claims = [
        rf"\textbf{{{claim.verdict}}}: {_latex(claim.statement)} {_latex(claim.evidence)}" for claim in report.claims
    ]
    for items in (claims, [*map(_latex, report.observations)], [*map(_latex, report.notes)]):
        if items:
            lines += [r"\begin{itemize}", *(rf"\item {item}" for item in items), r"\end{itemize}"]
    return "\n".join(lines) + "\n"


def as_csv(report: TableReport) -> str:
    """Render the table as CSV with full precision, one record per cell of the experiment."""
    return records_csv(report.records)


def records_csv(records: Sequence[dict[str, object]]) -> str:
    """Render records as CSV: None becomes an empty field, booleans ``true`` and ``false``; formulas are escaped."""
    if not records:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_value(value) for name, value in record.items()} for record in records)
    return text.getvalue()


FORMATS: dict[str, tuple[Callable[[TableReport], str], str]] = {  # name → (renderer, file suffix)
    "markdown": (as_markdown, "md"),
    "latex": (as_latex, "tex"),
    "csv": (as_csv, "csv"),
}


def _csv_value(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return escape_formula(value)
    return "" if value is None else value


def _markdown_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _markdown(cell: str) -> str:
    """Escape what would end a cell."""
    return " ".join(cell.replace("|", r"\|").split())


def _parenthesis(source: str) -> str:
    return f" ({source}.)" if source else ""


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _latex(text: str) -> str:
    return "".join(LATEX_ESCAPES.get(character, character) for character in text)
