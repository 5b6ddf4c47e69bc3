"""What one run leaves behind: numbers, curves, and where they come from."""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from equipoise import __version__
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.watch import Watch
from equipoise.train.recording import Recording

Outcome = Literal["finished", "converged", "stopped", "diverged", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
UNSUCCESSFUL: tuple[Outcome, ...] = ("failed", "diverged")  # what ``--retry failed`` runs again

CURVES = ("loss", "val_accuracy", "test_accuracy")
LIBRARIES = ("torch", "torch_geometric", "numba")

Curve = NDArray[np.float32]


@dataclass(frozen=True)
class Recorded:
    """A run's recording, packed for pipes and stores.

    Attributes:
        watch: what was asked for.
        packed: :meth:`Recording.to_bytes`.
    """

    watch: Watch
    packed: bytes

    def unpack(self) -> Recording:
        """The recording, ready to be made a frame."""
        return Recording.load(io.BytesIO(self.packed))


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run's result, as the store keeps it.

    Attributes:
        spec: what was run.
        outcome: ``"finished"`` all epochs, ``"converged"`` to the loss at which training stops, ``"stopped"`` because
            validation accuracy got no better, ``"diverged"``, or ``"failed"`` with an error.
        reason: one line, where there is more to say about the outcome.
        traceback: all of it, where the run failed with an error.
        test_accuracy: at the first epoch with the highest validation accuracy, in [0, 1]; None without an epoch.
        val_accuracy: that highest validation accuracy.
        best_epoch: that epoch, counted from 1.
        epochs: how many were run.
        seconds: how long that took, pauses left out.
        machine: kind of system and processor.
        versions: of Python, this package and the libraries that compute.
        when: the end of the run, UTC, ISO 8601.
        curves: ``loss``, ``val_accuracy`` and ``test_accuracy``, one number an epoch; empty where they were not kept.
        recording: what was recorded while it trained; None where nothing was, or it was not read.
    """

    spec: RunSpec
    outcome: Outcome
    reason: str = ""
    traceback: str = ""
    test_accuracy: float | None = None
    val_accuracy: float | None = None
    best_epoch: int | None = None
    epochs: int = 0
    seconds: float = 0.0
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    when: str = ""
    curves: Mapping[str, Curve] = field(default_factory=dict, compare=False, repr=False)
    recording: Recorded | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> str:
        """The key of the run's spec."""
        return self.spec.key

    def stamped(self) -> Result:
        """The same, with this machine, these versions and this moment."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return replace(self, machine=machine(), versions=versions(), when=now)


def failed(spec: RunSpec, reason: str, traceback: str = "") -> Result:
    """The result of a run that has none."""
    return Result(spec=spec, outcome="failed", reason=reason, traceback=traceback).stamped()


@cache
def versions() -> dict[str, str]:
    """Versions of all that has a say in a run's numbers."""
    found = {"equipoise": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:  # importable all the same, from a path
            found[library] = "unknown"
    return found


@cache
def machine() -> str:
    """Kind of system and processor, with the number of its cores; never the machine's name."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} × {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown processor"
