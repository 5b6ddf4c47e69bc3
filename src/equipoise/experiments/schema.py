"""The store's tables, and how a store of an earlier version becomes one of this version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from equipoise.errors import StoreError

APPLICATION_ID = 0x65717069  # "eqpi": what makes a SQLite file one of ours

# Entry n takes a store from version n to n + 1; a new store goes through all of them. Entries are only ever added.
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


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to this version, or say why that is not possible; a file that is not ours stays untouched."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (tables or version):
        raise StoreError(
            "this SQLite file is not a store of equipoise", where=str(path), remedy="name another file with --store"
        )
    if version > VERSION:
        raise StoreError(
            f"the store has version {version}, and this equipoise knows versions up to {VERSION}",
            where=str(path),
            remedy="update equipoise",
        )
    if version < VERSION:
        connection.execute("PRAGMA journal_mode = WAL")
        _migrate(connection)


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:  # the version is asked for again: another process may have been faster
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for step in MIGRATIONS[version:]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
