"""Results as a table, one row a run: for other programs, for version control, and for a store on another machine.

A table has everything about a run but its curves. Numbers are written so that they are read back to the bit; what is
None is an empty field. The spec's epochs, how many at most, are the column ``max_epochs``; ``epochs`` is how many there
were.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from equipoise.errors import EquipoiseError, StoreError
from equipoise.experiments.result import LIBRARIES, OUTCOMES, Result
from equipoise.experiments.spec import FIELDS, RunSpec

RENAMED = {"epochs": "max_epochs"}
SETTINGS = {RENAMED.get(name, name): name for name in FIELDS}  # column → field of the spec
NUMBERS: dict[str, type] = {
    "test_accuracy": float,
    "val_accuracy": float,
    "best_epoch": int,
    "epochs": int,
    "seconds": float,
}
VERSIONS = {f"{name}_version": name for name in ("equipoise", *LIBRARIES, "python")}
TEXTS = ("machine", "when", "reason", "traceback")
COLUMNS = ("key", *SETTINGS, "outcome", *NUMBERS, *VERSIONS, *TEXTS)

_TYPES = {name: next(iter(get_args(kind) or (kind,))) for name, kind in get_type_hints(RunSpec).items()}


def write_csv(results: Iterable[Result], path: Path) -> int:
    """Write a table and return its number of rows, which are in the order of their keys: equal stores, equal files."""
    rows = [_row(result) for result in sorted(results, key=lambda result: result.key)]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            plain = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            quoted = csv.DictWriter(file, COLUMNS, lineterminator="\n", quoting=csv.QUOTE_ALL)
            plain.writeheader()
            for row in rows:  # the csv module quotes its own line ends, and would leave a lone \r to end a line
                (quoted if any("\r" in text for text in row.values()) else plain).writerow(row)
    except OSError as error:
        raise StoreError(f"the table cannot be written: {error.strerror}", where=str(path)) from error
    return len(rows)


def read_csv(path: Path) -> Iterator[Result]:
    """The results in a table, as :func:`write_csv` writes it; an error names the line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            _check_columns(reader.fieldnames or (), path)
            for row in reader:
                try:
                    yield _result(row)
                except (EquipoiseError, ValueError, TypeError) as error:
                    what = error.what if isinstance(error, EquipoiseError) else str(error)
                    raise StoreError(f"no result: {what}", where=f"{path}, line {reader.line_num}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StoreError(f"the table cannot be read: {error}", where=str(path)) from error


def _row(result: Result) -> dict[str, str]:
    values = {
        "key": result.key,
        **{column: getattr(result.spec, name) for column, name in SETTINGS.items()},
        "outcome": result.outcome,
        **{name: getattr(result, name) for name in (*NUMBERS, *TEXTS)},
        **{column: result.versions.get(name) for column, name in VERSIONS.items()},
    }
    return {column: _text(value) for column, value in values.items()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _result(row: Mapping[str, str]) -> Result:
    spec = RunSpec(**{name: _value(row[column], _TYPES[name]) for column, name in SETTINGS.items()})
    if spec.key != row["key"]:
        raise StoreError(f"the key {row['key']} is not that of the settings, {spec.key}")
    outcome = next((known for known in OUTCOMES if known == row["outcome"]), None)
    if outcome is None:
        raise StoreError(f"unknown outcome {row['outcome']!r}")
    rest: dict[str, Any] = {name: _value(row[name], kind) for name, kind in NUMBERS.items()}
    rest |= {name: row[name] for name in TEXTS}
    rest["versions"] = {name: row[column] for column, name in VERSIONS.items() if row[column]}
    return Result(spec=spec, outcome=outcome, **rest)


def _value(text: str, kind: type) -> Any:
    if text == "":
        return None
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{text!r} is neither true nor false")
        return text == "true"
    return kind(text)


def _check_columns(found: Iterable[str], path: Path) -> None:
    if lacking := [column for column in COLUMNS if column not in set(found)]:
        raise StoreError(
            f"the table has no column {', '.join(lacking[:3])}{' …' if len(lacking) > 3 else ''}",
            where=str(path),
            remedy="`equipoise store export` writes one that has them all",
        )
