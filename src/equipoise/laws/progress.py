"""Progress of a long search on the terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

DELAY = 5.0  # seconds before anything is shown


class Progress:
    """One line on stderr, overwritten in place; nothing if stderr is not a terminal or the search is quick.

    Args:
        task: What is running.
    """

    def __init__(self, task: str) -> None:
        self.task, self.start, self.shown = task, time.monotonic(), False

    def update(self, state: str) -> None:
        """Show how far the search is."""
        elapsed = time.monotonic() - self.start
        if elapsed > DELAY and sys.stderr.isatty():
            sys.stderr.write(f"\r{self.task}: {state}, {elapsed:.0f} s\x1b[K")
            sys.stderr.flush()
            self.shown = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
