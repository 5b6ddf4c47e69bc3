"""The lock of a store: one sweep at a time. The operating system releases it when the process that holds it dies."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from equipoise.experiments.store import Store


@contextmanager
def sweep_lock(store: Store, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a store, waiting for another sweep to finish if necessary.

    Args:
        store: the store to lock.
        on_wait: called with a message before waiting.

    Yields:
        Nothing; the lock is held inside the ``with`` block.
    """
    lock = _file_lock(store.path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        on_wait(f"waiting: {store.lock_owner() or 'another process'} is running a sweep on {store.path}")
        lock.acquire()
    try:
        store.set_lock_owner(os.getpid(), socket.gethostname())
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Check whether a sweep is running on the store at this path."""
    if not path.exists():
        return False
    lock = _file_lock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False


def _file_lock(path: Path) -> FileLock:
    return FileLock(path.with_name(f"{path.name}.lock"))
