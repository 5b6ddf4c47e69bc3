"""Checkpoints: the training state of a run on disk, from which an interrupted run continues."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from equipoise.experiments.result import library_versions
from equipoise.training.history import TrainingState

log = logging.getLogger(__name__)


class Checkpoint:
    """The checkpoint file of one run. It is replaced atomically, so it never holds a partial state.

    Args:
        path: the file.
        key: key of the run.
        interval: seconds between two checkpoints.
    """

    def __init__(self, path: Path, key: str, interval: float = 60.0) -> None:
        self.path, self.key, self.interval = path, key, interval
        self._last_save = time.monotonic()

    def load(self) -> TrainingState | None:
        """Return the saved state, or ``None`` if there is none from which the run gives the same numbers."""
        if not self.path.exists():
            return None
        try:
            saved = torch.load(self.path, weights_only=True)
            problem = self._problem(saved)
            if not problem:
                return TrainingState(**saved["state"])
        except Exception as error:  # the file may contain anything; without it the run starts over
            problem = f"it cannot be read ({type(error).__name__})"
        log.warning("equipoise: ignoring checkpoint %s: %s; the run starts over", self.path, problem)
        return None

    def _problem(self, saved: Any) -> str:
        if not isinstance(saved, dict) or saved.keys() != {"key", "versions", "state"}:
            return "it is not a checkpoint of equipoise"
        if saved["key"] != self.key:
            return "it belongs to another run"
        if saved["versions"] != library_versions():
            return "it was written with other library versions, whose numbers may differ"
        return ""

    def is_due(self) -> bool:
        """Whether the last checkpoint is older than the interval."""
        return time.monotonic() - self._last_save >= self.interval

    def save_if_due(self, state: Callable[[], TrainingState]) -> None:
        """Save the state if the last checkpoint is older than the interval."""
        if self.is_due():
            self.save(state())

    def save(self, state: TrainingState) -> None:
        """Replace the checkpoint atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            torch.save({"key": self.key, "versions": library_versions(), "state": vars(state)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        self._last_save = time.monotonic()
