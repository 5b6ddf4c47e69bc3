"""The SQLite file of a store: open, migrate, and raise its errors with a remedy."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from equipoise.errors import StoreError
from equipoise.experiments.schema import (
    APPLICATION_ID,
    CHECKSUM_VERSION,
    DATABASE_ERRORS,
    MIGRATIONS,
    VERSION,
    add_functions,
)

DAMAGE = (
    "malformed",
    "decode",
    "user-defined function",
    "no such",
    "duplicate column",
)  # in SQLite's messages


def connect(path: Path, timeout: float, read_only: bool) -> sqlite3.Connection:
    """Open a store, and migrate it to this version.

    Args:
        path: the SQLite file.
        timeout: seconds to wait for another process that is writing.
        read_only: only read it: its file and folder need not be writable.

    Returns:
        The connection, without automatic transactions.

    Raises:
        StoreError: If the file is not a store, is damaged, or comes from a later version.
    """
    database = _read_only_address(path) if read_only and not is_writable(path) else path
    with store_errors(path):
        connection = sqlite3.connect(database, timeout=timeout, isolation_level=None, uri=database is not path)
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            add_functions(connection)
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
            if version == CHECKSUM_VERSION - 1:
                return  # only checksums are missing, which reading does not need
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
def store_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as a :class:`StoreError` with a remedy."""
    try:
        yield
    except DATABASE_ERRORS as error:
        message, where = str(error), str(path)
        if "locked" in message or "busy" in message:
            what = "the store is locked: another process has been writing to it for too long"
            remedy = "stop that process, or work on a copy of the file"
        elif "not a database" in message:
            what, remedy = "this file is not a store", "name another one with --store"
        elif any(symptom in message for symptom in DAMAGE):
            what, remedy = f"the store is damaged: {message}", repair_command(path)
        elif "full" in message or "I/O" in message:
            what = f"the store cannot be written: {message}"
            remedy = "free disk space, then run the same command again; what was stored before is intact"
        elif "unable to open" in message or "readonly" in message:
            what, remedy = "the store cannot be opened", "check that its folder exists and is writable"
        else:
            what, remedy = f"the store cannot be used: {message}", ""
        raise StoreError(what, where=where, remedy=remedy) from error


def repair_command(path: Path) -> str:
    """Return the remedy for a damaged store."""
    return f"`equipoise store repair --store {path}` keeps all readable runs; a sweep repeats the others"
