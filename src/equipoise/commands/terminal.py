"""What commands show while they work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def working(message: str) -> Iterator[None]:
    """A spinner on the terminal while something takes its time; nothing where output goes to a file."""
    from rich.console import Console

    with Console(stderr=True).status(message):
        yield
