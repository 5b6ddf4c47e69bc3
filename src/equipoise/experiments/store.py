"""All results in one SQLite file.

Readers never wait (write-ahead log); writing is the business of one process at a time, see
:mod:`~equipoise.experiments.driver`.
"""

from __future__ import annotations

import json
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
from equipoise.experiments.result import Curve, Recorded, Result
from equipoise.experiments.schema import prepare
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.watch import Watch

DEFAULT = Path("equipoise.sqlite")
PATIENCE = 30.0  # seconds to wait for another writer, whose transactions are short

COLUMNS = (
    *("key", "spec", "outcome", "reason", "traceback", "test_accuracy", "val_accuracy"),
    *("best_epoch", "epochs", "seconds", "machine", "versions", "when"),
)
_LISTED = ", ".join(f'"{column}"' for column in COLUMNS)


@dataclass(frozen=True)
class Merged:
    """What became of results that were merged into a store.

    Attributes:
        added: runs that the store did not have.
        replaced: failed runs that now have a result.
        known: runs that it had; they stayed as they were.
    """

    added: int = 0
    replaced: int = 0
    known: int = 0


class Store:
    """Results by the keys of their specs, each at most once.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from equipoise.experiments.result import failed
        >>> result = failed(RunSpec(dataset="cora", depth=2, lr=0.1), "no memory")
        >>> with TemporaryDirectory() as folder, Store(Path(folder) / "results.sqlite") as store:
        ...     store.put(result)
        ...     store.results()[result.key] == result
        True

    Args:
        path: the file.
        create: whether to make one where there is none.
        patience: seconds to wait for another process that is writing.
    """

    def __init__(self, path: str | Path = DEFAULT, *, create: bool = True, patience: float = PATIENCE) -> None:
        self.path = Path(path)
        if not create and not self.path.exists():
            raise StoreError("there is no store here", where=str(self.path), remedy="name one with --store")
        self._connection = _connect(self.path, patience)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def put(self, result: Result) -> None:
        """Keep a result, in place of an earlier one of the same run; its run is no longer running."""
        with self._writing():
            self._put(result)
            self._connection.execute("DELETE FROM running WHERE key = ?", (result.key,))

    def merge(self, results: Iterable[Result]) -> Merged:
        """Take over what is not here yet; a result that is here stays, unless it is a failure and the other is none.

        Merging the same twice changes nothing. All is taken over or, with an error, nothing.
        """
        counts = {"added": 0, "replaced": 0, "known": 0}
        with self._writing():
            here = self.outcomes()
            for result in results:
                if result.key not in here:
                    fate = "added"
                elif here[result.key] == "failed" and result.outcome != "failed":
                    fate = "replaced"
                else:
                    fate = "known"
                    self._complete(result)
                if fate != "known":
                    self._put(result)
                    here[result.key] = result.outcome
                counts[fate] += 1
        return Merged(**counts)

    def results(
        self, keys: Iterable[str] | None = None, *, curves: bool = False, recordings: bool = False
    ) -> dict[str, Result]:
        """Results by key, those asked for or all, in the order in which they came; what is large where asked for."""
        rows = self._read(f"SELECT {_LISTED} FROM runs ORDER BY rowid")
        wanted = None if keys is None else set(keys)
        chosen = [dict(zip(COLUMNS, row, strict=True)) for row in rows if wanted is None or row[0] in wanted]
        return {row["key"]: self._result(row, curves, recordings) for row in chosen}

    def outcomes(self) -> dict[str, str]:
        """Key → outcome of every run in the store."""
        return dict(self._read("SELECT key, outcome FROM runs"))

    def curves(self, key: str) -> dict[str, Curve]:
        """The curves of a run: one number an epoch."""
        rows = self._read("SELECT name, compressed FROM curves WHERE key = ?", (key,))
        return {name: np.frombuffer(zlib.decompress(compressed), dtype="<f4") for name, compressed in rows}

    def recording(self, key: str) -> Recorded | None:
        """What was recorded of a run."""
        rows = self._read("SELECT every, quantities, packed FROM recordings WHERE key = ?", (key,))
        return Recorded(Watch(rows[0][0], tuple(rows[0][1].split())), rows[0][2]) if rows else None

    def recorded(self) -> dict[str, Watch]:
        """Key → what was watched, of every run with a recording."""
        rows = self._read("SELECT key, every, quantities FROM recordings")
        return {key: Watch(every, tuple(quantities.split())) for key, every, quantities in rows}

    def note_driver(self, pid: int, host: str) -> None:
        """Write down who drives a sweep on this store; what an earlier one was running is not running any more."""
        with self._writing():
            self._connection.execute("DELETE FROM driver")
            self._connection.execute("DELETE FROM running")
            self._connection.execute("INSERT INTO driver VALUES (?, ?, ?)", (pid, host, _now()))

    def note_running(self, key: str) -> None:
        """Write down that a run has started."""
        with self._writing():
            self._connection.execute("INSERT OR REPLACE INTO running VALUES (?, ?)", (key, _now()))

    def driver(self) -> str:
        """The last one who drove a sweep, in words; empty if nobody did."""
        rows = self._read("SELECT pid, host, since FROM driver")
        return "process {} on {} since {}".format(*rows[0]) if rows else ""

    def running(self) -> dict[str, str]:
        """Key → since when, of the runs that the last driver had started and not finished."""
        return dict(self._read("SELECT key, since FROM running"))

    def _put(self, result: Result) -> None:
        places = ", ".join("?" * len(COLUMNS))
        self._connection.execute("DELETE FROM runs WHERE key = ?", (result.key,))
        self._connection.execute(f"INSERT INTO runs ({_LISTED}) VALUES ({places})", _row(result))
        self._put_curves(result)
        self._put_recording(result)

    def _put_curves(self, result: Result) -> None:
        rows = [
            (result.key, name, zlib.compress(curve.astype("<f4").tobytes())) for name, curve in result.curves.items()
        ]
        self._connection.executemany("INSERT INTO curves VALUES (?, ?, ?)", rows)

    def _put_recording(self, result: Result) -> None:
        if result.recording is not None:
            watch = result.recording.watch
            row = (result.key, watch.every, " ".join(watch.quantities), result.recording.packed)
            self._connection.execute("INSERT INTO recordings VALUES (?, ?, ?, ?)", row)

    def _complete(self, result: Result) -> None:
        """Curves and recording of the same result from a store that has them, where they came here without."""
        curves = bool(result.curves) and not self.curves(result.key)
        recording = result.recording is not None and self.recording(result.key) is None
        if (curves or recording) and self.results([result.key])[result.key] == result:
            if curves:
                self._put_curves(result)
            if recording:
                self._put_recording(result)

    def _result(self, row: dict[str, Any], curves: bool, recordings: bool) -> Result:
        key = row.pop("key")
        row["spec"], row["versions"] = RunSpec.from_dict(json.loads(row["spec"])), json.loads(row["versions"])
        recording = self.recording(key) if recordings else None
        return Result(**row, curves=self.curves(key) if curves else {}, recording=recording)

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with _explained(self.path):
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with _explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _row(result: Result) -> list[Any]:
    packed: Mapping[str, Any] = {
        **vars(result),
        "key": result.key,
        "spec": json.dumps(result.spec.to_dict(), sort_keys=True),
        "versions": json.dumps(dict(result.versions), sort_keys=True),
    }
    return [packed[column] for column in COLUMNS]


def _connect(path: Path, patience: float) -> sqlite3.Connection:
    with _explained(path):
        connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """SQLite's errors in our words."""
    try:
        yield
    except sqlite3.Error as error:
        where = str(path)
        if "locked" in str(error) or "busy" in str(error):
            raise StoreError(
                "the store is locked: another process is writing to it and does not come to an end",
                where=where,
                remedy="end that process, or copy the file and work on the copy",
            ) from error
        if "not a database" in str(error) or "malformed" in str(error):
            raise StoreError("this file is not a store", where=where, remedy="name another one with --store") from error
        if "unable to open" in str(error):
            remedy = "check that its folder is there and may be written to"
            raise StoreError("the store cannot be opened", where=where, remedy=remedy) from error
        raise StoreError(f"the store cannot be used: {error}", where=where) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
