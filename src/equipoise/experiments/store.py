"""The store: all results in one SQLite file.

Readers never wait, since the file has a write-ahead log. Only one process may run a sweep on a store at a time, see
:mod:`~equipoise.experiments.sweep`. A store of an earlier version is migrated when it is opened.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from equipoise.errors import StoreError
from equipoise.experiments.recording_plan import RecordingPlan
from equipoise.experiments.result import NUMBERS, Curve, PackedRecording, Result
from equipoise.experiments.spec import RunSpec

APPLICATION_ID = 0x65717069  # "eqpi" in the file header marks a SQLite file as a store

# Migration n turns version n into version n + 1; a new store runs all of them. Never edit one, only append.
MIGRATIONS = (
    """
    CREATE TABLE runs (
        key TEXT PRIMARY KEY,
        spec TEXT NOT NULL,
        outcome TEXT NOT NULL,
        reason TEXT NOT NULL,
        traceback TEXT NOT NULL,
        test_accuracy REAL,
        val_accuracy REAL,
        best_epoch INTEGER,
        epochs INTEGER NOT NULL,
        seconds REAL NOT NULL,
        machine TEXT NOT NULL,
        versions TEXT NOT NULL,
        "when" TEXT NOT NULL
    );
    CREATE TABLE curves (
        key TEXT NOT NULL REFERENCES runs (key) ON DELETE CASCADE,
        name TEXT NOT NULL,
        compressed BLOB NOT NULL,
        PRIMARY KEY (key, name)
    );
    """,
    """
    CREATE TABLE driver (pid INTEGER NOT NULL, host TEXT NOT NULL, since TEXT NOT NULL);
    CREATE TABLE running (key TEXT PRIMARY KEY, since TEXT NOT NULL);
    """,
    """
    CREATE TABLE recordings (
        key TEXT PRIMARY KEY REFERENCES runs (key) ON DELETE CASCADE,
        every INTEGER NOT NULL,
        quantities TEXT NOT NULL,
        packed BLOB NOT NULL
    );
    """,
)
VERSION = len(MIGRATIONS)

DEFAULT_PATH = Path("equipoise.sqlite")
LOCK_TIMEOUT = 30.0  # seconds to wait for another writer; transactions are short

COLUMNS = (
    *("key", "spec", "outcome", "reason", "traceback", "test_accuracy", "val_accuracy"),
    *("best_epoch", "epochs", "seconds", "machine", "versions", "when"),
)
_COLUMN_LIST = ", ".join(f'"{column}"' for column in COLUMNS)


@dataclass(frozen=True)
class MergeCount:
    """Numbers of merged results.

    Attributes:
        added: runs that were not in the store.
        replaced: failed runs that now have a result.
        known: runs that were in the store and stayed unchanged.
        differing: those of them for which the merged result has other numbers.
    """

    added: int = 0
    replaced: int = 0
    known: int = 0
    differing: int = 0


class Store:
    """Results by run key, at most one per run.

    Args:
        path: the SQLite file.
        read_only: only read the store: it must exist, and its file and folder need not be writable.
        timeout: seconds to wait for another process that is writing.

    Raises:
        StoreError: If the file does not exist (with ``read_only=True``), is not a store, or comes from a later version.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from equipoise.experiments.result import failed_result
        >>> result = failed_result(RunSpec(dataset="cora", depth=2, lr=0.1), "out of memory")
        >>> with TemporaryDirectory() as folder, Store(Path(folder) / "results.sqlite") as store:
        ...     store.put(result)
        ...     store.results()[result.key] == result
        True
    """

    def __init__(
        self,
        path: str | Path = DEFAULT_PATH,
        *,
        read_only: bool = False,
        timeout: float = LOCK_TIMEOUT,
    ) -> None:
        self.path = Path(path)
        if read_only and not self.path.exists():
            raise StoreError("the store does not exist", where=str(self.path), remedy="name one with --store")
        self._connection = _connect(self.path, timeout, read_only)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def put(self, result: Result) -> None:
        """Insert a result, replacing an earlier one of the same run, and mark the run as no longer running."""
        with self._transaction():
            self._insert(result)
            self._connection.execute("DELETE FROM running WHERE key = ?", (result.key,))

    def merge(self, results: Iterable[Result]) -> MergeCount:
        """Insert the results of runs that the store lacks or that failed in it; all other runs stay unchanged.

        Merging is idempotent and atomic. Curves and recordings that the store lacks are added if the rest of the
        result is equal.

        Args:
            results: results of another store or table.

        Returns:
            How many results were added, replaced and known, and how many of the known ones differ.
        """
        counts = {"added": 0, "replaced": 0, "known": 0, "differing": 0}
        with self._transaction():
            outcomes = self.outcomes()
            for result in results:
                if result.key not in outcomes:
                    action = "added"
                elif outcomes[result.key] == "failed" and result.outcome != "failed":
                    action = "replaced"
                else:
                    action = "known"
                    counts["differing"] += self._differs(result)
                    self._add_missing_arrays(result)
                if action != "known":
                    self._insert(result)
                    outcomes[result.key] = result.outcome
                counts[action] += 1
        return MergeCount(**counts)

    def results(
        self, keys: Iterable[str] | None = None, *, curves: bool = False, recordings: bool = False
    ) -> dict[str, Result]:
        """Return results by key in order of insertion, with curves and recordings on request.

        Args:
            keys: runs to return; all by default.
            curves: load the curves.
            recordings: load the recordings.

        Returns:
            Results by run key.
        """
        rows = self._query(f"SELECT {_COLUMN_LIST} FROM runs ORDER BY rowid")
        wanted = None if keys is None else set(keys)
        selected = [dict(zip(COLUMNS, row, strict=True)) for row in rows if wanted is None or row[0] in wanted]
        return {row["key"]: self._result(row, curves, recordings) for row in selected}

    def outcomes(self) -> dict[str, str]:
        """Return the outcomes of all runs by key."""
        return dict(self._query("SELECT key, outcome FROM runs"))

    def curves(self, key: str) -> dict[str, Curve]:
        """Return the curves of a run, one value per epoch."""
        rows = self._query("SELECT name, compressed FROM curves WHERE key = ?", (key,))
        return {name: np.frombuffer(zlib.decompress(compressed), dtype="<f4") for name, compressed in rows}

    def recording(self, key: str) -> PackedRecording | None:
        """Return the recording of a run, or ``None``."""
        rows = self._query("SELECT every, quantities, packed FROM recordings WHERE key = ?", (key,))
        return PackedRecording(RecordingPlan(rows[0][0], tuple(rows[0][1].split())), rows[0][2]) if rows else None

    def recording_plans(self) -> dict[str, RecordingPlan]:
        """Return the plans of all recordings by run key."""
        rows = self._query("SELECT key, every, quantities FROM recordings")
        return {key: RecordingPlan(every, tuple(quantities.split())) for key, every, quantities in rows}

    def set_lock_owner(self, pid: int, host: str) -> None:
        """Register the process that runs a sweep on this store, and clear the running runs of its predecessor."""
        with self._transaction():
            self._connection.execute("DELETE FROM driver")
            self._connection.execute("DELETE FROM running")
            self._connection.execute("INSERT INTO driver VALUES (?, ?, ?)", (pid, host, _now()))

    def lock_owner(self) -> str:
        """Describe the last process that ran a sweep; empty if there was none."""
        rows = self._query("SELECT pid, host, since FROM driver")
        return "process {} on {} since {}".format(*rows[0]) if rows else ""

    def mark_running(self, key: str) -> None:
        """Mark a run as started."""
        with self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO running VALUES (?, ?)", (key, _now()))

    def running(self) -> dict[str, str]:
        """Return the start times by key of the runs that the last sweep started and did not finish."""
        return dict(self._query("SELECT key, since FROM running"))

    def _insert(self, result: Result) -> None:
        placeholders = ", ".join("?" * len(COLUMNS))
        self._connection.execute("DELETE FROM runs WHERE key = ?", (result.key,))
        self._connection.execute(f"INSERT INTO runs ({_COLUMN_LIST}) VALUES ({placeholders})", _row(result))
        self._insert_curves(result)
        self._insert_recording(result)

    def _insert_curves(self, result: Result) -> None:
        rows = [
            (result.key, name, zlib.compress(curve.astype("<f4").tobytes())) for name, curve in result.curves.items()
        ]
        self._connection.executemany("INSERT INTO curves VALUES (?, ?, ?)", rows)

    def _insert_recording(self, result: Result) -> None:
        if result.recording is not None:
            plan = result.recording.plan
            row = (result.key, plan.every, " ".join(plan.quantities), result.recording.packed)
            self._connection.execute("INSERT INTO recordings VALUES (?, ?, ?, ?)", row)

    def _differs(self, result: Result) -> bool:
        """Whether the store has other numbers for this run; a failed run has none."""
        columns = ", ".join(NUMBERS)
        ((outcome, *numbers),) = self._query(f"SELECT {columns} FROM runs WHERE key = ?", (result.key,))
        if "failed" in (outcome, result.outcome):
            return False
        return [outcome, *numbers] != [getattr(result, name) for name in NUMBERS]

    def _add_missing_arrays(self, result: Result) -> None:
        """Add curves and recording that the store lacks, if they belong to the same result."""
        curves = bool(result.curves) and not self.curves(result.key)
        recording = result.recording is not None and self.recording(result.key) is None
        if (curves or recording) and self.results([result.key])[result.key] == result:
            if curves:
                self._insert_curves(result)
            if recording:
                self._insert_recording(result)

    def _result(self, row: dict[str, Any], curves: bool, recordings: bool) -> Result:
        key = row.pop("key")
        row["spec"], row["versions"] = RunSpec.from_dict(json.loads(row["spec"])), json.loads(row["versions"])
        recording = self.recording(key) if recordings else None
        return Result(**row, curves=self.curves(key) if curves else {}, recording=recording)

    def _query(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with _store_errors(self.path):
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _store_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _row(result: Result) -> list[Any]:
    values: Mapping[str, Any] = {
        **vars(result),
        "key": result.key,
        "spec": json.dumps(result.spec.to_dict(), sort_keys=True),
        "versions": json.dumps(dict(result.versions), sort_keys=True),
    }
    return [values[column] for column in COLUMNS]


def _connect(path: Path, timeout: float, read_only: bool) -> sqlite3.Connection:
    database = _read_only_address(path) if read_only and not is_writable(path) else path
    with _store_errors(path):
        connection = sqlite3.connect(database, timeout=timeout, isolation_level=None, uri=database is not path)
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            _check_version(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def is_writable(path: Path) -> bool:
    """Check that a store can be written: SQLite also needs to create files in its folder, even to read a store."""
    return os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK)


def _read_only_address(path: Path) -> str:
    """Address of a store that cannot be written; without a write-ahead log, SQLite may read the file alone."""
    log = path.with_name(f"{path.name}-wal")
    immutable = "" if log.exists() and log.stat().st_size else "&immutable=1"
    return f"{path.resolve().as_uri()}?mode=ro{immutable}"


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate an older store to this version; leave files that are not stores untouched."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (tables or version):
        raise StoreError(
            "this SQLite file is not a store of equipoise", where=str(path), remedy="name another file with --store"
        )
    if version > VERSION:
        raise StoreError(
            f"the store has version {version}; this version of equipoise supports versions up to {VERSION}",
            where=str(path),
            remedy="update equipoise",
        )
    if version < VERSION:
        if version and not is_writable(path):
            raise StoreError(
                f"the store has version {version} and is read-only, so that it cannot be migrated",
                where=str(path),
                remedy="copy it to a writable folder",
            )
        connection.execute("PRAGMA journal_mode = WAL")
        _migrate(connection)


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:  # read the version again: another process may have migrated the store in the meantime
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for migration in MIGRATIONS[version:]:
            for statement in migration.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as a :class:`StoreError` with a remedy."""
    try:
        yield
    except sqlite3.Error as error:
        message, where = str(error), str(path)
        if "locked" in message or "busy" in message:
            what = "the store is locked: another process has been writing to it for too long"
            remedy = "stop that process, or work on a copy of the file"
        elif "not a database" in message or "malformed" in message:
            what, remedy = "this file is not a store", "name another one with --store"
        elif "unable to open" in message or "readonly" in message:
            what, remedy = "the store cannot be opened", "check that its folder exists and is writable"
        else:
            what, remedy = f"the store cannot be used: {message}", ""
        raise StoreError(what, where=where, remedy=remedy) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
