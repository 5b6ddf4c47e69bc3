"""Verify a store, and salvage the readable runs of a damaged one.

Both read the file without writing to it. Salvaging reads ranges of rows and halves those that SQLite cannot read, so
that a damaged page costs its own rows only.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import Timeout

from equipoise.errors import EquipoiseError, StoreError
from equipoise.experiments.recording_plan import RecordingPlan
from equipoise.experiments.result import Curve, PackedRecording, Result
from equipoise.experiments.schema import (
    CHECKED_COLUMNS,
    CHECKSUM_VERSION,
    COLUMNS,
    DATABASE_ERRORS,
    VERSION,
    add_functions,
    row_checksum,
)
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.store import Store, unpack_curve
from equipoise.experiments.sweep import store_lock

MAX_COPY = 1 << 40  # bytes; the file is sparse, and a larger size in the header is damage itself
MIN_ROW_SIZE = 64  # bytes of a row in the file, at least: bounds the number of rows if the file does not tell it


@dataclass
class Salvage:
    """The readable content of a store.

    Attributes:
        results: results whose rows are intact, by key, with their intact curves and recordings.
        problems: one line per defect.
        lost: number of runs without a readable result; ``None`` if the file does not tell.
        incomplete: number of results without a curve or recording that they had.
    """

    results: dict[str, Result] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lost: int | None = 0
    incomplete: int = 0


def check_store(path: Path) -> Salvage:
    """Verify a store: SQLite's own consistency, the checksum of every row, settings, curves and recordings.

    Args:
        path: the store.

    Returns:
        The readable content, and the problems; a store without problems is intact.

    Raises:
        StoreError: If the file does not exist or is not a store.
    """
    with _open(path) as connection:
        salvage = Salvage()
        if path.stat().st_size < _size(connection) and not _has_pages_in_log(path, connection):
            salvage.problems.append("the file was truncated")
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            lines = [line for (line,) in connection.execute("PRAGMA integrity_check(20)")]
            salvage.problems += [f"SQLite: {line}" for line in lines if line != "ok"]
        except DATABASE_ERRORS as error:
            version = VERSION
            salvage.problems.append(f"SQLite: {error}")
        _read(connection, version >= CHECKSUM_VERSION, salvage)
    return salvage


def repair_store(path: Path) -> tuple[Salvage, Path | None]:
    """Replace a damaged store by one with its readable content; keep the damaged file under another name.

    Args:
        path: the store; nothing happens if it is intact.

    Returns:
        The content of the store, and the new name of the damaged file (``None`` if the store is intact).

    Raises:
        StoreError: If the file is not a store, a sweep is using it, or the new file cannot be written.
    """
    if not path.is_file():
        raise StoreError("the store does not exist", where=str(path), remedy="name one with --store")
    lock = store_lock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise StoreError("a sweep is using the store", where=str(path), remedy="stop the sweep first") from None
    try:
        salvage = check_store(path)
        return salvage, _replace(path, salvage) if salvage.problems else None
    finally:
        lock.release()


def _replace(path: Path, salvage: Salvage) -> Path:
    repaired, damaged = path.with_name(f"{path.name}.repaired"), _free_name(path)
    repaired.unlink(missing_ok=True)
    try:
        with Store(repaired) as store:
            store.merge(salvage.results.values())
    except BaseException:
        for suffix in ("", "-wal", "-shm"):
            repaired.with_name(repaired.name + suffix).unlink(missing_ok=True)
        raise
    for suffix in ("-wal", "-shm", ""):  # the log belongs to the damaged file
        source = path.with_name(path.name + suffix)
        if source.exists():
            os.replace(source, damaged.with_name(damaged.name + suffix))
    os.replace(repaired, path)
    return damaged


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in range(10_000))
    return next(name for name in names if not name.exists())


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a store for reading only; raises a :class:`StoreError` if its list of tables is unreadable."""
    if not path.is_file():
        raise StoreError("the store does not exist", where=str(path), remedy="name one with --store")
    with TemporaryDirectory(prefix="equipoise-") as folder, closing(_connect(_complete(path, folder))) as connection:
        try:
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("PRAGMA writable_schema = ON")  # skips unreadable entries in the list of tables
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except DATABASE_ERRORS as error:
            raise StoreError(
                f"nothing in this file is readable: {error}", where=str(path), remedy="restore a copy of the file"
            ) from error
        if "runs" not in tables:
            raise StoreError("this file is not a store", where=str(path), remedy="name another one with --store")
        yield connection


def _connect(path: Path) -> sqlite3.Connection:
    # A file without a log has no writer. Only then can SQLite read it without creating files next to it.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, isolation_level=None)
    add_functions(connection)
    return connection


def _has_pages_in_log(path: Path, connection: sqlite3.Connection) -> bool:
    """Whether the write-ahead log holds the pages that the file lacks: a full disk or a kill ended their transfer."""
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or not log.stat().st_size:
        return False
    try:
        pages, page_size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    except DATABASE_ERRORS:
        return False
    return bool(pages * page_size >= _size(connection))


def _size(connection: sqlite3.Connection) -> int:
    """Return the size of the file that the connection reads."""
    return Path(connection.execute("PRAGMA database_list").fetchone()[2]).stat().st_size


def _complete(path: Path, folder: str) -> Path:
    """Return the file itself or, if it was truncated, a copy filled up with zeros: SQLite reads no shorter file."""
    with path.open("rb") as file:
        header = file.read(32)
    size = int.from_bytes(header[16:18], "big")
    expected = int.from_bytes(header[28:32], "big") * (1 << 16 if size == 1 else size)
    if len(header) < 32 or not path.stat().st_size < expected <= MAX_COPY:
        return path
    copy = Path(shutil.copy(path, folder))
    os.truncate(copy, expected)
    log = path.with_name(f"{path.name}-wal")
    if log.exists():
        shutil.copy(log, folder)
    return copy


def _read(connection: sqlite3.Connection, has_checksums: bool, salvage: Salvage) -> None:
    """Read all intact rows."""
    curves: dict[str, dict[str, Curve]] = {}
    for key, name, compressed in _intact_rows(connection, "curves", has_checksums, salvage):
        try:
            curves.setdefault(key, {})[name] = unpack_curve(compressed)
        except Exception as error:  # a store of an earlier version has no checksum that excludes damage
            salvage.problems.append(f"curves: {name} of run {key} is unreadable: {error}")
    recordings: dict[str, PackedRecording] = {}
    for key, every, quantities, packed in _intact_rows(connection, "recordings", has_checksums, salvage):
        recording = PackedRecording(RecordingPlan(every, tuple(quantities.split())), packed)
        try:
            recording.unpack()
            recordings[key] = recording
        except EquipoiseError as error:
            salvage.problems.append(f"recordings: that of run {key} is unreadable: {error.what}")
    for *values, arrays in _intact_rows(connection, "runs", has_checksums, salvage):
        row = dict(zip(COLUMNS, values, strict=True))
        key = row.pop("key")
        try:
            row["spec"], row["versions"] = RunSpec.from_dict(json.loads(row["spec"])), json.loads(row["versions"])
            if row["spec"].key != key:
                raise ValueError("its key is not that of its settings")
        except (EquipoiseError, ValueError, TypeError) as error:
            salvage.problems.append(f"runs: run {key} is unreadable: {error}")
            salvage.lost = None if salvage.lost is None else salvage.lost + 1
            continue
        result = Result(**row, curves=curves.get(key, {}), recording=recordings.get(key))
        found = {*result.curves, *(("recording",) if result.recording else ())}
        if arrays is not None and set(arrays.split()) != found:
            missing = ", ".join(sorted(set(arrays.split()) - found))
            salvage.problems.append(f"runs: run {key} lacks {missing}")
            salvage.incomplete += 1
        salvage.results[key] = result
    if orphans := (curves.keys() | recordings.keys()) - salvage.results.keys():
        salvage.lost = None if salvage.lost is None else max(salvage.lost, len(orphans))
        salvage.problems.append(f"runs: {len(orphans)} runs have curves or a recording, but no result")


def _intact_rows(
    connection: sqlite3.Connection, table: str, has_checksums: bool, salvage: Salvage
) -> Iterator[list[Any]]:
    columns = CHECKED_COLUMNS[table]
    if not has_checksums:
        columns = columns.replace(", arrays", ", NULL")
    query = f"SELECT {columns}, {'checksum' if has_checksums else 'NULL'} FROM {table} WHERE rowid BETWEEN ? AND ?"
    known = True
    try:
        last = connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] or 0
    except DATABASE_ERRORS as error:
        known, last = False, _size(connection) // MIN_ROW_SIZE
        salvage.problems.append(f"{table}: the number of rows is unknown: {error}")
    ranges, damaged = [(1, last)], 0
    while ranges:
        first, last = ranges.pop()
        try:
            rows = connection.execute(query, (first, last)).fetchall() if first <= last else []
        except DATABASE_ERRORS:
            if first < last:
                middle = (first + last) // 2
                ranges += [(middle + 1, last), (first, middle)]
            else:
                damaged += 1
            continue
        for *values, checksum in rows:
            if has_checksums and row_checksum(*values) != checksum:
                damaged += 1
            else:
                yield values
    if damaged and known:
        salvage.problems.append(f"{table}: {damaged} rows are unreadable or have a wrong checksum")
    if damaged and table == "runs":
        salvage.lost = damaged if known else None
