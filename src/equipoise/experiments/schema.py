"""The tables of a store, their migrations, and the checksum of a row.

Every row of ``runs``, ``curves`` and ``recordings`` has a checksum of its values, computed inside SQLite on the values
as they are stored. ``runs.arrays`` names the curves and recordings of a run, so that a lost row is noticed as well.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3

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
    """
    ALTER TABLE runs ADD COLUMN arrays TEXT;
    ALTER TABLE runs ADD COLUMN checksum TEXT;
    ALTER TABLE curves ADD COLUMN checksum TEXT;
    ALTER TABLE recordings ADD COLUMN checksum TEXT;
    UPDATE curves SET checksum = row_checksum(key, name, compressed);
    UPDATE recordings SET checksum = row_checksum(key, every, quantities, packed);
    UPDATE runs SET arrays = (
        SELECT coalesce(group_concat(name, ' '), '') FROM (
            SELECT name FROM curves WHERE curves.key = runs.key
            UNION ALL SELECT 'recording' FROM recordings WHERE recordings.key = runs.key
        )
    );
    UPDATE runs SET checksum = row_checksum(
        key, spec, outcome, reason, traceback, test_accuracy, val_accuracy,
        best_epoch, epochs, seconds, machine, versions, "when", arrays
    );
    """,
)
VERSION = len(MIGRATIONS)
CHECKSUM_VERSION = 4  # the first version with checksums

COLUMNS = (
    *("key", "spec", "outcome", "reason", "traceback", "test_accuracy", "val_accuracy"),
    *("best_epoch", "epochs", "seconds", "machine", "versions", "when"),
)
COLUMN_LIST = ", ".join(f'"{column}"' for column in COLUMNS)
CHECKED_COLUMNS = {  # table → the columns that its checksum covers
    "runs": f"{COLUMN_LIST}, arrays",
    "curves": "key, name, compressed",
    "recordings": "key, every, quantities, packed",
}

# Executed after the rows of a run have been written, with its key.
SEAL = (
    *(
        f"UPDATE {table} SET checksum = row_checksum({CHECKED_COLUMNS[table]}) WHERE key = ?"
        for table in ("curves", "recordings")
    ),
    """
    UPDATE runs SET arrays = (
        SELECT coalesce(group_concat(name, ' '), '') FROM (
            SELECT name FROM curves WHERE curves.key = runs.key
            UNION ALL SELECT 'recording' FROM recordings WHERE recordings.key = runs.key
        )
    ) WHERE key = ?
    """,
    f"UPDATE runs SET checksum = row_checksum({CHECKED_COLUMNS['runs']}) WHERE key = ?",
)


def row_checksum(*values: str | float | bytes | None) -> str:
    """Compute the checksum of a row.

    Args:
        *values: the values as SQLite stores them.

    Returns:
        16 hexadecimal digits.

    Example:
        >>> row_checksum("a key", 0.5, None) == row_checksum("a key", 0.25, None)
        False
    """
    plain = [_digest(value) if isinstance(value, bytes) else value for value in values]
    return _digest(json.dumps(plain).encode())


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def add_functions(connection: sqlite3.Connection) -> None:
    """Make ``row_checksum`` available in statements."""
    connection.create_function("row_checksum", -1, row_checksum, deterministic=True)
