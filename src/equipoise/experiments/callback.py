"""Base class of objects that follow a sweep, such as progress displays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.experiments.result import Result
    from equipoise.experiments.spec import RunSpec


class SweepCallback:
    """Base class of objects that follow a sweep; every hook does nothing by default.

    Example:
        >>> class Printer(SweepCallback):
        ...     def on_run_end(self, result):
        ...         print(result.spec.label, result.outcome)
    """

    def on_wait(self, message: str) -> None:
        """Called when another sweep holds the store's lock, before waiting for it."""

    def on_sweep_start(self, todo: Sequence[RunSpec]) -> None:
        """Called once with the runs to do."""

    def on_run_start(self, spec: RunSpec) -> None:
        """Called when a run starts, and again when it restarts because its process or node was lost."""

    def on_run_end(self, result: Result) -> None:
        """Called when a run has ended and its result is in the store."""
