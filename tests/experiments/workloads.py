"""Small specs and run functions for tests of executors and sweeps; worker processes import this module."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from equipoise.experiments.executors import Events, RunFunction
from equipoise.experiments.result import Result
from equipoise.experiments.run import run
from equipoise.experiments.spec import RunSpec


def spec(**settings) -> RunSpec:
    """A run with epochs of a few milliseconds."""
    return RunSpec(**{"dataset": "synthetic-citation", "depth": 2, "width": 8, "lr": 0.1, "epochs": 6, **settings})


SPECS = [spec(seed=seed, init=init) for seed in range(2) for init in ("xav", "bal-o")]


def serial_executor(specs: Sequence[RunSpec], run_function: RunFunction) -> Events:
    """The simplest executor: sequential runs in this process."""
    for one in specs:
        yield one
        yield run_function(one)


def equal_results(a: Result, b: Result) -> bool:
    """Compare two results except for time, machine and recording; curves must be bit-identical."""
    ignored = ("seconds", "when", "machine", "curves", "recording")
    names = [field.name for field in fields(Result) if field.name not in ignored]
    return (
        all(getattr(a, name) == getattr(b, name) for name in names)
        and a.curves.keys() == b.curves.keys()
        and all(np.array_equal(a.curves[name], b.curves[name]) for name in a.curves)
    )


@dataclass(frozen=True)
class KillingRun:
    """Kills its process on the run with this seed, at most ``times`` times; leaves one file per kill."""

    folder: Path
    seed: int
    times: int = 1_000_000

    def __call__(self, spec: RunSpec) -> Result:
        if spec.seed == self.seed and len(list(self.folder.iterdir())) < self.times:
            (self.folder / f"{spec.key}-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return run(spec)


@dataclass(frozen=True)
class CountingRun:
    """Leaves one file per start of a run, and takes a minimum time on any machine."""

    folder: Path
    run_function: RunFunction
    seconds: float = 2.0

    def __call__(self, spec: RunSpec) -> Result:
        (self.folder / f"{spec.key}-{os.getpid()}").touch()
        time.sleep(self.seconds)
        return self.run_function(spec)
