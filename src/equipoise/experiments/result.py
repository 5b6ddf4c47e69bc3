"""The result of a run: accuracies, training curves, recording, and the environment that produced them."""

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
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from equipoise import __version__
from equipoise.experiments.recording_plan import RecordingPlan
from equipoise.experiments.spec import RunSpec

if TYPE_CHECKING:
    from equipoise.training.recording import Recording

Outcome = Literal["finished", "converged", "stopped", "diverged", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
UNSUCCESSFUL: tuple[Outcome, ...] = ("failed", "diverged")  # repeated by ``--retry failed``

NUMBERS = ("outcome", "test_accuracy", "val_accuracy", "best_epoch", "epochs")  # equal whenever a run is repeated
CURVES = ("loss", "val_accuracy", "test_accuracy")
LIBRARIES = ("torch", "torch_geometric", "numba")

Curve = NDArray[np.float32]


@dataclass(frozen=True)
class PackedRecording:
    """The recording of a run as bytes, for pipes and stores.

    Attributes:
        plan: the plan that it follows.
        packed: output of :meth:`Recording.to_bytes`.
    """

    plan: RecordingPlan
    packed: bytes

    def unpack(self) -> Recording:
        """Return the recording."""
        from equipoise.training.recording import Recording  # noqa: PLC0415 - imports pandas

        return Recording.load(io.BytesIO(self.packed))


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one run, as the store keeps it.

    Attributes:
        spec: the run's settings.
        outcome: ``"finished"`` (all epochs), ``"converged"`` (reached ``stop_loss``), ``"stopped"`` (``patience``
            exhausted), ``"diverged"``, or ``"failed"`` (an error).
        reason: one line about the outcome; may be empty.
        traceback: traceback of a failed run; may be empty.
        test_accuracy: test accuracy at the first epoch with the highest validation accuracy, in [0, 1]; ``None`` if
            there was no epoch. Where ``spec.metric`` is ``"roc_auc"``, all accuracies are areas under the ROC curve.
        val_accuracy: highest validation accuracy.
        best_epoch: that epoch, counted from 1.
        epochs: number of epochs run.
        seconds: duration without interruptions.
        machine: operating system and processor.
        versions: versions of Python, this package and the numerical libraries.
        when: end of the run, UTC, ISO 8601.
        curves: ``loss``, ``val_accuracy`` and ``test_accuracy``, one value per epoch; empty if not loaded.
        recording: the recording made during training; ``None`` if there is none or it was not loaded.
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
    recording: PackedRecording | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> str:
        """The key of the run's spec."""
        return self.spec.key

    def with_environment(self) -> Result:
        """Return a copy that states this machine, these library versions and the current time."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return replace(self, machine=describe_machine(), versions=library_versions(), when=now)


def failed_result(spec: RunSpec, reason: str, traceback: str = "") -> Result:
    """Create the result of a run that ended in an error."""
    return Result(spec=spec, outcome="failed", reason=reason, traceback=traceback).with_environment()


@cache
def library_versions() -> dict[str, str]:
    """Return the versions of everything that affects a run's numbers."""
    versions = {"equipoise": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:  # a library without metadata, imported from a path
            versions[library] = "unknown"
    return versions


@cache
def describe_machine() -> str:
    """Describe operating system, processor and number of cores. The host name is not included."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} × {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown processor"
