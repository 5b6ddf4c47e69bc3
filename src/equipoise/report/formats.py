"""A report as Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from equipoise.report.tables import Report

# What LaTeX does not take as it is.
SYMBOLS = {
    **{"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "^": r"\^{}"},
    **{"±": r"$\pm$", "≥": r"$\geq$", "≤": r"$\leq$", "−": "$-$", "→": r"$\to$", "≠": r"$\neq$", "≈": r"$\approx$"},
    **{
        "ω": r"$\omega$",
        "δ": r"$\delta$",
        "‖": r"$\|$",
        "∇": r"$\nabla$",
        "×": r"$\times$",
        "₀": "$_0$",
        "<": "$<$",
        ">": "$>$",
    },
    **{"…": r"\ldots{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"},
}


def as_markdown(report: Report) -> str:
    """A heading, the table with its columns aligned, claims, findings and notes."""
    rows = [
        [f"**{cell}**" if (i, j) in report.bold else cell for j, cell in enumerate(row)]
        for i, row in enumerate(report.rows)
    ]
    widths = [max(3, *(len(row[j]) for row in [report.columns, *rows])) for j in range(len(report.columns))]
    lines = [f"## {report.name}: {report.title}", "", f"{report.source}. {report.status}.".removeprefix(". "), ""]
    lines += [_padded(report.columns, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    lines += [_padded(row, widths) for row in rows]
    if report.claims:
        lines += ["", "What is said about it:", ""]
        lines += [
            f"- **{line.word}**: {line.say}{_source(line.source)} {_sentence(line.numbers)}" for line in report.claims
        ]
    if report.findings:
        lines += ["", "What the runs show:", "", *(f"- {_sentence(finding)}" for finding in report.findings)]
    if report.notes:
        lines += ["", "Notes:", "", *(f"- {note}" for note in report.notes)]
    return "\n".join(lines) + "\n"


def as_latex(report: Report) -> str:
    """A ``longtable`` (packages booktabs and longtable), claims, findings and notes as lists."""
    lines = [
        r"% \usepackage{booktabs, longtable}",
        rf"\begin{{longtable}}{{{'l' * len(report.columns)}}}",
        rf"\caption{{{_tex(report.title)} ({_tex(report.source or report.name)}). {_tex(report.status)}.}}\\",
        r"\toprule",
        " & ".join(map(_tex, report.columns)) + r" \\ \midrule \endhead",
    ]
    for i, row in enumerate(report.rows):
        cells = [rf"\textbf{{{_tex(cell)}}}" if (i, j) in report.bold else _tex(cell) for j, cell in enumerate(row)]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{longtable}"]
    claims = [f"\\textbf{{{line.word}}}: {_tex(line.say)} {_tex(_sentence(line.numbers))}" for line in report.claims]
    for items in (claims, *([_tex(text) for text in texts] for texts in (report.findings, report.notes))):
        if items:
            lines += [r"\begin{itemize}", *(rf"\item {item}" for item in items), r"\end{itemize}"]
    return "\n".join(lines) + "\n"


def as_csv(report: Report) -> str:
    """One record a cell, every number at full precision."""
    return records_csv(report.records)


def records_csv(records: Sequence[dict[str, object]]) -> str:
    """Records as CSV; empty where there is no number."""
    if not records:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in record.items()} for record in records)
    return text.getvalue()


FORMATS: dict[str, tuple[Callable[[Report], str], str]] = {
    "markdown": (as_markdown, "md"),
    "latex": (as_latex, "tex"),
    "csv": (as_csv, "csv"),
}


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value


def _padded(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _source(source: str) -> str:
    return f" ({source}.)" if source else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _tex(text: str) -> str:
    return "".join(SYMBOLS.get(character, character) for character in text)
