"""The store: all results in one SQLite file.

Readers never wait, since the file has a write-ahead log. Only one process may run a sweep on a store at a time, see
:mod:`~equipoise.experiments.sweep`. A store of an earlier version is migrated when it is opened.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from equipoise.errors import EquipoiseError, StoreError
from equipoise.experiments.recording_plan import RecordingPlan
from equipoise.experiments.result import NUMBERS, Curve, PackedRecording, Result
from equipoise.experiments.schema import (
    CHECKED_COLUMNS,
    CHECKSUM_VERSION,
    COLUMN_LIST,
    COLUMNS,
    SEAL,
    row_checksum,
)
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.store_file import connect, repair_command, store_errors

DEFAULT_PATH = Path("equipoise.sqlite")
LOCK_TIMEOUT = 30.0  # seconds to wait for another writer; transactions are short


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
        path: the SQLite file. Every row has a checksum, which is verified when the row is read.
        read_only: only read the store: it must exist, and its file and folder need not be writable.
        timeout: seconds to wait for another process that is writing.

    Raises:
        StoreError: If the file does not exist (with ``read_only=True``), is not a store, is damaged, or comes from a
            later version.

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
        if read_only and self.path.is_file() and not self.path.stat().st_size:
            raise StoreError(
                "the store is an empty file", where=str(self.path), remedy="restore a copy, or name another"
            )
        self._connection = connect(self.path, timeout, read_only)
        ((version,),) = self._query("PRAGMA user_version")
        self._has_checksums = version >= CHECKSUM_VERSION  # a read-only store of an earlier version has none

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
        wanted = None if keys is None else set(keys)
        with self._snapshot():
            rows = [row for row in self._runs() if wanted is None or row["key"] in wanted]
            return {row["key"]: self._result(row, curves, recordings) for row in rows}

    def outcomes(self) -> dict[str, str]:
        """Return the outcomes of all runs by key."""
        return {row["key"]: row["outcome"] for row in self._runs()}

    def curves(self, key: str) -> dict[str, Curve]:
        """Return the curves of a run, one value per epoch."""
        with self._snapshot():
            return self._curves(key, self._arrays(key))

    def recording(self, key: str) -> PackedRecording | None:
        """Return the recording of a run, or ``None``."""
        with self._snapshot():
            return self._recording(key, self._arrays(key))

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
        self._connection.execute(f"INSERT INTO runs ({COLUMN_LIST}) VALUES ({placeholders})", _row(result))
        self._insert_curves(result)
        self._insert_recording(result)
        self._seal(result.key)

    def _insert_curves(self, result: Result) -> None:
        rows = [
            (result.key, name, zlib.compress(curve.astype("<f4").tobytes())) for name, curve in result.curves.items()
        ]
        self._connection.executemany("INSERT INTO curves (key, name, compressed) VALUES (?, ?, ?)", rows)

    def _insert_recording(self, result: Result) -> None:
        if result.recording is not None:
            plan = result.recording.plan
            row = (result.key, plan.every, " ".join(plan.quantities), result.recording.packed)
            statement = "INSERT INTO recordings (key, every, quantities, packed) VALUES (?, ?, ?, ?)"
            self._connection.execute(statement, row)

    def _seal(self, key: str) -> None:
        """Write the checksums of a run's rows."""
        for statement in SEAL:
            self._connection.execute(statement, (key,))

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
            self._seal(result.key)

    def _runs(self) -> list[dict[str, Any]]:
        """All rows of ``runs`` in order of insertion, verified."""
        extra = ", arrays, checksum" if self._has_checksums else ", NULL, NULL"
        with self._snapshot():
            rows = self._query(f"SELECT {COLUMN_LIST}{extra} FROM runs ORDER BY rowid")
            ((count,),) = self._query("SELECT count(*) FROM runs")  # counts the entries of the index
        for *values, checksum in rows:
            self._verify(f"the row of run {values[0]}", values, checksum)
        if len(rows) != count:
            raise self._damage(f"{count} runs are in the index, but {len(rows)} in the table")
        return [dict(zip((*COLUMNS, "arrays"), row[:-1], strict=True)) for row in rows]

    def _result(self, row: dict[str, Any], curves: bool, recordings: bool) -> Result:
        key, arrays = row.pop("key"), row.pop("arrays")
        try:
            row["spec"], row["versions"] = RunSpec.from_dict(json.loads(row["spec"])), json.loads(row["versions"])
        except (EquipoiseError, ValueError, TypeError) as error:
            raise self._damage(f"the settings of run {key} are unreadable") from error
        recording = self._recording(key, arrays) if recordings else None
        return Result(**row, curves=self._curves(key, arrays) if curves else {}, recording=recording)

    def _curves(self, key: str, arrays: str | None) -> dict[str, Curve]:
        rows = self._array_rows("curves", key)
        expected = None if arrays is None else set(arrays.split()) - {"recording"}
        if expected is not None and {row[1] for row in rows} != expected:
            raise self._damage(f"curves of run {key} are missing")
        try:
            return {name: unpack_curve(compressed) for _, name, compressed in rows}
        except (zlib.error, ValueError, TypeError) as error:
            raise self._damage(f"a curve of run {key} is unreadable") from error

    def _recording(self, key: str, arrays: str | None) -> PackedRecording | None:
        rows = self._array_rows("recordings", key)
        if arrays is not None and ("recording" in arrays.split()) != bool(rows):
            raise self._damage(f"the recording of run {key} is missing")
        return PackedRecording(RecordingPlan(rows[0][1], tuple(rows[0][2].split())), rows[0][3]) if rows else None

    def _array_rows(self, table: str, key: str) -> list[list[Any]]:
        extra = "checksum" if self._has_checksums else "NULL"
        rows = self._query(f"SELECT {CHECKED_COLUMNS[table]}, {extra} FROM {table} WHERE key = ?", (key,))
        for *values, checksum in rows:
            self._verify(f"a row of {table} of run {key}", values, checksum)
        return [row[:-1] for row in rows]

    def _arrays(self, key: str) -> str | None:
        """Names of the curves and recordings of a run; ``None`` if that is unknown."""
        if not self._has_checksums:
            return None
        rows = self._query("SELECT arrays FROM runs WHERE key = ?", (key,))
        if not rows and self._query("SELECT 1 FROM runs NOT INDEXED WHERE key = ?", (key,)):
            raise self._damage(f"the index has no entry of run {key}")
        return rows[0][0] if rows else ""

    def _verify(self, what: str, values: list[Any], checksum: str | None) -> None:
        if self._has_checksums and row_checksum(*values) != checksum:
            raise self._damage(f"{what} has a wrong checksum")

    def _damage(self, what: str) -> StoreError:
        return StoreError(f"the store is damaged: {what}", where=str(self.path), remedy=repair_command(self.path))

    def _query(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with store_errors(self.path):
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let several queries see the same state of the file, whatever another process writes."""
        if self._connection.in_transaction:
            yield
            return
        self._query("BEGIN")
        try:
            yield
        finally:
            self._query("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with store_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def unpack_curve(compressed: bytes) -> Curve:
    """Decompress a curve."""
    return np.frombuffer(zlib.decompress(compressed), dtype="<f4")


def _row(result: Result) -> list[Any]:
    values: Mapping[str, Any] = {
        **vars(result),
        "key": result.key,
        "spec": json.dumps(result.spec.to_dict(), sort_keys=True),
        "versions": json.dumps(dict(result.versions), sort_keys=True),
    }
    return [values[column] for column in COLUMNS]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
