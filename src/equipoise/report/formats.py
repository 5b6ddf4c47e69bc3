"""Render the report on an experiment as Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

from equipoise.inert_text import escape_formula
from equipoise.report.tables import TableReport

HTML_TAG = re.compile(r"<(?=[A-Za-z/!?])")  # Markdown passes tags on to the page; a name may contain one
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
