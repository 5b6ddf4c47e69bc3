"""Results as a CSV table with one row per run, for other programs, version control and other machines.

The table holds everything about a run except its curves and recording. Numbers are written so that they are read back
bit-identical; an empty field means ``None``. Tables of earlier versions lack the columns of later settings, which then
have their defaults. A text that a spreadsheet would take for a formula begins with an apostrophe. The column
``max_epochs`` is the spec's ``epochs``, the maximum; the column ``epochs`` is the number of epochs that were run.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from equipoise.atomic_write import write_atomically
from equipoise.errors import ChoiceError, EquipoiseError, StoreError
from equipoise.experiments.result import LIBRARIES, NUMBERS, OUTCOMES, Result
from equipoise.experiments.spec import FIELDS, MAX_INTEGER, RunSpec
from equipoise.inert_text import escape_formula, unescape_formula

RENAMED_FIELDS = {"epochs": "max_epochs"}
SETTING_COLUMNS = {RENAMED_FIELDS.get(name, name): name for name in FIELDS}  # column → field of the spec
NUMBER_COLUMNS: dict[str, tuple[type, float, float]] = {  # type, smallest and largest value
    "test_accuracy": (float, 0.0, 1.0),
    "val_accuracy": (float, 0.0, 1.0),
    "best_epoch": (int, 1, MAX_INTEGER),
    "epochs": (int, 0, MAX_INTEGER),
    "seconds": (float, 0.0, 1e12),
}
VERSION_COLUMNS = {f"{name}_version": name for name in ("equipoise", *LIBRARIES, "python")}
TEXT_COLUMNS = ("machine", "when", "reason", "traceback")
LATER_SETTINGS = ("calibrate",)  # added after the first tables
COLUMNS = ("key", *SETTING_COLUMNS, "outcome", *NUMBER_COLUMNS, *VERSION_COLUMNS, *TEXT_COLUMNS)


def _column_type(annotation: Any) -> type:
    """Return the type of a column's values: ``int`` for ``int | None``, ``str`` for literals."""
    while not isinstance(annotation, type):
        annotation = get_args(annotation)[0]
        if isinstance(annotation, str):
            return str
    return annotation


_TYPES = {name: _column_type(annotation) for name, annotation in get_type_hints(RunSpec).items()}


def write_csv(results: Iterable[Result], path: Path) -> int:
    """Write a table, sorted by key so that equal stores give equal files.

    Args:
        results: the rows.
        path: the file.

    Returns:
        Number of rows.

    Raises:
        StoreError: If the file cannot be written.
    """
    rows = [_row(result) for result in sorted(results, key=lambda result: result.key)]
    file = io.StringIO()
    plain = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    quoted = csv.DictWriter(file, COLUMNS, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writeheader()
    for row in rows:  # the csv module does not quote a lone \r, which readers take for the end of a line
        (quoted if any("\r" in text for text in row.values()) else plain).writerow(row)
    try:
        write_atomically(path, file.getvalue())
    except OSError as error:
        raise StoreError(f"the table cannot be written: {error.strerror}", where=str(path)) from error
    return len(rows)


def read_csv(path: Path) -> Iterator[Result]:
    """Read a table written by :func:`write_csv`; a byte order mark at its beginning is skipped.

    Args:
        path: the file.

    Yields:
        One result per row.

    Raises:
        StoreError: If the file cannot be read, a row is invalid, or two rows give different numbers for the same run;
            names line and column.
    """
    lines: dict[str, tuple[int, Result]] = {}  # key → first line of the run
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            _check_columns(reader.fieldnames or (), path)
            for row in reader:
                try:
                    result = _result(row)
                    _check_repetition(result, *lines.setdefault(result.key, (reader.line_num, result)))
                except EquipoiseError as error:
                    where = ", ".join(filter(None, (str(path), f"line {reader.line_num}", error.where)))
                    raise StoreError(f"invalid row: {error.what}", where=where, remedy=error.remedy) from error
                yield result
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StoreError(f"the table cannot be read: {error}", where=str(path)) from error


def _row(result: Result) -> dict[str, str]:
    values = {
        "key": result.key,
        **{column: getattr(result.spec, name) for column, name in SETTING_COLUMNS.items()},
        "outcome": result.outcome,
        **{name: getattr(result, name) for name in (*NUMBER_COLUMNS, *TEXT_COLUMNS)},
        **{column: result.versions.get(name) for column, name in VERSION_COLUMNS.items()},
    }
    return {column: _text(value) for column, value in values.items()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return escape_formula(value)
    return repr(value) if isinstance(value, float) else str(value)


def _result(row: Mapping[str, str]) -> Result:
    if None in row or None in row.values():
        raise StoreError("the row does not have as many fields as the header")
    columns = {column: name for column, name in SETTING_COLUMNS.items() if column in row}
    spec = RunSpec(**{name: _value(row, column, _TYPES[name]) for column, name in columns.items()})
    if spec.key != row["key"]:
        raise StoreError(f"the key {row['key']} does not match the settings, whose key is {spec.key}")
    if row["outcome"] not in OUTCOMES:
        raise ChoiceError("outcome", row["outcome"], OUTCOMES)
    fields: dict[str, Any] = {column: _number(row, column) for column in NUMBER_COLUMNS}
    fields |= {name: unescape_formula(row[name]) for name in TEXT_COLUMNS}
    versions = {name: unescape_formula(row[column]) for column, name in VERSION_COLUMNS.items()}
    fields["versions"] = {name: version for name, version in versions.items() if version}
    return Result(spec=spec, outcome=row["outcome"], **fields)


def _value(row: Mapping[str, str], column: str, kind: type) -> Any:
    text = row[column]
    if text == "":
        return None
    if kind is bool and text not in ("true", "false"):
        raise StoreError(f"{text!r} is neither 'true' nor 'false'", where=f"column {column}")
    try:
        return text == "true" if kind is bool else kind(text)
    except ValueError:
        raise StoreError(f"{text[:40]!r} is not a number", where=f"column {column}") from None


def _number(row: Mapping[str, str], column: str) -> Any:
    kind, low, high = NUMBER_COLUMNS[column]
    value = _value(row, column, kind)
    if value is not None and not (low <= value <= high):  # also refuses NaN
        limits = f"at least {low:g}" if high > 1 else f"from {low:g} to {high:g}"
        limits += ", at most 64 bits" if kind is int else ""
        raise StoreError(f"{row[column][:40]} is not a number {limits}", where=f"column {column}")
    return value


def _check_repetition(result: Result, line: int, first: Result) -> None:
    """A run may be repeated, as in a table pasted from two files, if its numbers are equal or one of them failed."""
    if "failed" in (result.outcome, first.outcome):
        return
    for column in NUMBERS:
        value, other = getattr(result, column), getattr(first, column)
        if value != other:
            raise StoreError(
                f"run {result.key} is also in line {line}, with {other} instead of {value}",
                where=f"column {column}",
                remedy="remove one of the two rows",
            )


def _check_columns(columns: Iterable[str], path: Path) -> None:
    required = [column for column in COLUMNS if SETTING_COLUMNS.get(column) not in LATER_SETTINGS]
    if missing := [column for column in required if column not in set(columns)]:
        raise StoreError(
            f"the table has no column {', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}",
            where=str(path),
            remedy="`equipoise store export` writes a table with all columns",
        )
