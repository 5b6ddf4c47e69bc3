"""Small runs, and work that goes wrong; worker processes import this."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from equipoise.experiments.executors import News, Work
from equipoise.experiments.result import Result
from equipoise.experiments.run import run
from equipoise.experiments.spec import RunSpec


def spec(**settings) -> RunSpec:
    """A run of a few milliseconds an epoch."""
    return RunSpec(**{"dataset": "synthetic-citation", "depth": 2, "width": 8, "lr": 0.1, "epochs": 6, **settings})


SPECS = [spec(seed=seed, init=init) for seed in range(2) for init in ("xav", "bal-o")]


def here(specs: Sequence[RunSpec], work: Work) -> News:
    """The simplest executor: one run after the other, in this process."""
    for one in specs:
        yield one
        yield work(one)


def same(a: Result, b: Result) -> bool:
    """Whether two results are equal in all but time, machine and recording, curves to the bit."""
    other = ("seconds", "when", "machine", "curves", "recording")
    names = [field.name for field in fields(Result) if field.name not in other]
    return (
        all(getattr(a, name) == getattr(b, name) for name in names)
        and a.curves.keys() == b.curves.keys()
        and all(np.array_equal(a.curves[name], b.curves[name]) for name in a.curves)
    )


@dataclass(frozen=True)
class Deadly:
    """Work that kills its process on the run with this seed: each time, or so many times."""

    folder: Path
    seed: int
    times: int = 1_000_000

    def __call__(self, spec: RunSpec) -> Result:
        if spec.seed == self.seed and len(list(self.folder.iterdir())) < self.times:
            (self.folder / f"{spec.key}-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return run(spec)


@dataclass(frozen=True)
class Counted:
    """Work that leaves a file for each time that it is begun, and takes its time, however fast the machine is."""

    folder: Path
    work: Work
    seconds: float = 2.0

    def __call__(self, spec: RunSpec) -> Result:
        (self.folder / f"{spec.key}-{os.getpid()}").touch()
        time.sleep(self.seconds)
        return self.work(spec)
