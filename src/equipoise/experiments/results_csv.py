"""Results as a CSV table with one row per run, for other programs, version control and other machines.

The table holds everything about a run except its curves and recording. Numbers are written so that they are read back
bit-identical; an empty field means ``None``. Tables of earlier versions lack the columns of later settings, which then
have their defaults. The column ``max_epochs`` is the spec's ``epochs``, the maximum; the
column ``epochs`` is the number of epochs that were run.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from equipoise.errors import EquipoiseError, StoreError
from equipoise.experiments.result import LIBRARIES, OUTCOMES, Result
from equipoise.experiments.spec import FIELDS, RunSpec

RENAMED_FIELDS = {"epochs": "max_epochs"}
SETTING_COLUMNS = {RENAMED_FIELDS.get(name, name): name for name in FIELDS}  # column → field of the spec
NUMBER_COLUMNS: dict[str, type] = {
    "test_accuracy": float,
    "val_accuracy": float,
    "best_epoch": int,
    "epochs": int,
    "seconds": float,
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
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            plain = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            quoted = csv.DictWriter(file, COLUMNS, lineterminator="\n", quoting=csv.QUOTE_ALL)
            plain.writeheader()
            for row in rows:  # the csv module does not quote a lone \r, which readers take for the end of a line
                (quoted if any("\r" in text for text in row.values()) else plain).writerow(row)
    except OSError as error:
        raise StoreError(f"the table cannot be written: {error.strerror}", where=str(path)) from error
    return len(rows)


def read_csv(path: Path) -> Iterator[Result]:
    """Read a table written by :func:`write_csv`.

    Args:
        path: the file.

    Yields:
        One result per row.

    Raises:
        StoreError: If the file cannot be read or a row is invalid; names the line.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            _check_columns(reader.fieldnames or (), path)
            for row in reader:
                try:
                    yield _result(row)
                except (EquipoiseError, ValueError, TypeError) as error:
                    what = error.what if isinstance(error, EquipoiseError) else str(error)
                    raise StoreError(f"invalid row: {what}", where=f"{path}, line {reader.line_num}") from error
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
    return repr(value) if isinstance(value, float) else str(value)


def _result(row: Mapping[str, str]) -> Result:
    settings = {name: row[column] for column, name in SETTING_COLUMNS.items() if column in row}
    spec = RunSpec(**{name: _value(text, _TYPES[name]) for name, text in settings.items()})
    if spec.key != row["key"]:
        raise StoreError(f"the key {row['key']} does not match the settings, whose key is {spec.key}")
    if row["outcome"] not in OUTCOMES:
        raise StoreError(f"unknown outcome {row['outcome']!r}")
    fields: dict[str, Any] = {name: _value(row[name], kind) for name, kind in NUMBER_COLUMNS.items()}
    fields |= {name: row[name] for name in TEXT_COLUMNS}
    fields["versions"] = {name: row[column] for column, name in VERSION_COLUMNS.items() if row[column]}
    return Result(spec=spec, outcome=row["outcome"], **fields)


def _value(text: str, kind: type) -> Any:
    if text == "":
        return None
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{text!r} is neither 'true' nor 'false'")
        return text == "true"
    return kind(text)


def _check_columns(columns: Iterable[str], path: Path) -> None:
    required = [column for column in COLUMNS if SETTING_COLUMNS.get(column) not in LATER_SETTINGS]
    if missing := [column for column in required if column not in set(columns)]:
        raise StoreError(
            f"the table has no column {', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}",
            where=str(path),
            remedy="`equipoise store export` writes a table with all columns",
        )
