"""One sweep at a time on a store: a lock that the operating system takes back from whoever dies."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from equipoise.experiments.store import Store


@contextmanager
def driving(store: Store, say: Callable[[str], None]) -> Iterator[None]:
    """Be the one who drives a sweep on this store; waits for another one to end, and says so."""
    lock = _lock(store.path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(f"waiting: {store.driver() or 'another process'} is running a sweep on {store.path}")
        lock.acquire()
    try:
        store.note_driver(os.getpid(), socket.gethostname())
        yield
    finally:
        lock.release()


def driven(path: Path) -> bool:
    """Whether somebody drives a sweep on this store now."""
    if not path.exists():
        return False
    lock = _lock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False


def _lock(path: Path) -> FileLock:
    return FileLock(path.with_name(f"{path.name}.lock"))
