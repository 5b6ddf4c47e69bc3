"""A run's state on disk, so that a run that was killed goes on where it was."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from equipoise.experiments.result import versions
from equipoise.train.state import TrainingState

EVERY = 60.0  # seconds from one checkpoint of a run to its next

log = logging.getLogger(__name__)


class Checkpoint:
    """The file with the state of one run; there is an old state or a new one in it, never half of one.

    Args:
        path: the file.
        key: of the run that it belongs to.
        every: seconds from one state to the next.
    """

    def __init__(self, path: Path, key: str, every: float = EVERY) -> None:
        self.path, self.key, self.every = path, key, every
        self._last = time.monotonic()

    def load(self) -> TrainingState | None:
        """The state to go on from; None if there is none, or none that leads to the same numbers."""
        if not self.path.exists():
            return None
        try:
            saved = torch.load(self.path, weights_only=True)
            fault = self._fault(saved)
            if not fault:
                return TrainingState(**saved["state"])
        except Exception as error:  # whatever is in the file, the run can start over
            fault = f"it cannot be read ({type(error).__name__})"
        log.warning("equipoise: checkpoint %s is ignored: %s; its run starts over", self.path, fault)
        return None

    def _fault(self, saved: Any) -> str:
        if not isinstance(saved, dict) or saved.keys() != {"key", "versions", "state"}:
            return "it is not one of ours"
        if saved["key"] != self.key:
            return "it belongs to another run"
        if saved["versions"] != versions():
            return "it was made by other versions of the libraries, whose numbers may differ"
        return ""

    def offer(self, state: Callable[[], TrainingState]) -> None:
        """Save the state, if the last one is old enough."""
        if time.monotonic() - self._last >= self.every:
            self.save(state())

    def save(self, state: TrainingState) -> None:
        """Replace what is in the file, in one step that happens or does not."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(f".{os.getpid()}.tmp")
        with fresh.open("wb") as file:
            torch.save({"key": self.key, "versions": versions(), "state": vars(state)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.path)
        self._last = time.monotonic()
