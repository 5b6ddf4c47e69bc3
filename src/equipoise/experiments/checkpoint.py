"""Checkpoints: the training state of a run on disk, from which an interrupted run continues."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from equipoise.atomic_write import write_atomically
from equipoise.errors import TrainingError
from equipoise.experiments.result import library_versions
from equipoise.training.history import TrainingState

log = logging.getLogger(__name__)

HEADER = b"equipoise checkpoint 1\n"  # followed by the SHA-256 of the rest in hexadecimal, a newline, and the rest
FOREIGN = "it belongs to another run"
DIGITS = hashlib.sha256().digest_size * 2


class Checkpoint:
    """The checkpoint file of one run. It is replaced atomically, so it never holds a partial state.

    A file that cannot be written costs nothing but the checkpoint: the run goes on. A file that was damaged on disk
    is never used: it is renamed to ``….damaged`` and the run starts over.

    Args:
        path: the file.
        key: key of the run.
        interval: seconds between two checkpoints.
    """

    def __init__(self, path: Path, key: str, interval: float = 60.0) -> None:
        self.path, self.key, self.interval = path, key, interval
        self._last_save = time.monotonic()
        self._warned = False

    def load(self, *, named: bool = False) -> TrainingState | None:
        """Return the saved state, or ``None`` if there is none from which the run gives the same numbers.

        Args:
            named: the user named the file, so that it is refused if this run would replace something else.

        Returns:
            The state.

        Raises:
            TrainingError: with ``named``, if the file is no checkpoint, or one of another run, or cannot be read.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            if named:
                raise self._refuse(f"it cannot be read: {error.strerror}") from error
            log.warning("equipoise: checkpoint %s cannot be read (%s); the run starts over", self.path, error.strerror)
            return None
        if named and not content.startswith(HEADER):
            raise self._refuse("it is not a checkpoint")
        try:
            saved = torch.load(io.BytesIO(_verified(content)), weights_only=True)
            state = None if (problem := self._problem(saved)) else TrainingState(**saved["state"])
        except Exception as error:  # a file written by another program may contain anything
            self._set_aside(str(error) if isinstance(error, _DamagedError) else f"it is unreadable: {error!r}")
            return None
        if named and problem == FOREIGN:
            raise self._refuse(problem)
        if problem:
            log.warning("equipoise: ignoring checkpoint %s: %s; the run starts over", self.path, problem)
        return state

    def _refuse(self, problem: str) -> TrainingError:
        return TrainingError(
            f"the checkpoint is not one of this run: {problem}",
            where=str(self.path),
            remedy="name another file, continue the other run with its settings, or delete the file",
        )

    def _set_aside(self, problem: str) -> None:
        numbers = chain([""], (f"-{number}" for number in count(2)))
        names = (self.path.with_suffix(f".damaged{number}") for number in numbers)
        damaged = next(name for name in names if not name.exists())
        try:
            os.replace(self.path, damaged)
            note = f"it is now {damaged.name}"
        except OSError:
            note = "it cannot be renamed"
        log.warning("equipoise: checkpoint %s is not used: %s; %s, the run starts over", self.path, problem, note)

    def _problem(self, saved: Any) -> str:
        if not isinstance(saved, dict) or saved.keys() != {"key", "versions", "state"}:
            return "it is not a checkpoint of a run"
        if saved["key"] != self.key:
            return FOREIGN
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
        """Replace the checkpoint atomically. If that fails, warn once, keep the previous one, and try again later."""
        file = io.BytesIO()
        torch.save({"key": self.key, "versions": library_versions(), "state": vars(state)}, file)
        payload = file.getvalue()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, HEADER + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
        except OSError as error:
            if not self._warned:
                reason = error.strerror or error
                log.warning("equipoise: no checkpoint in %s: %s; the run goes on without", self.path.parent, reason)
            self._warned = True
        self._last_save = time.monotonic()


class _DamagedError(Exception):
    """The bytes of a checkpoint are not those that were written."""


def _verified(content: bytes) -> bytes:
    """Return the payload of a checkpoint file whose checksum is right."""
    header, digest, payload = content[: len(HEADER)], content[len(HEADER) :][:DIGITS], content[len(HEADER) + DIGITS :]
    if header != HEADER:
        raise _DamagedError("it does not begin like a checkpoint of this version")
    if hashlib.sha256(payload[1:]).hexdigest().encode() != digest:
        raise _DamagedError("its checksum is wrong, so its bytes have changed since it was written")
    return payload[1:]
