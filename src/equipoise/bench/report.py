"""What a bench leaves behind: plain numbers, to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from equipoise.errors import EquipoiseError

OURS, PYG = "equipoise", "PyG"  # PyG's variants have names that begin so


@dataclass(frozen=True)
class Timing:
    """Epochs of all contestants in one process, in turns.

    Attributes:
        case: what.
        threads: on how many threads.
        samples: milliseconds of every epoch, by contestant.
        rates: flops and bytes per second, measured in between.
        floor: milliseconds that an epoch takes at these rates; none on several threads.
    """

    case: str
    threads: int
    samples: dict[str, list[float]]
    rates: dict[str, float] = field(default_factory=dict)
    floor: float | None = None

    @property
    def medians(self) -> dict[str, float]:
        """Milliseconds an epoch, by contestant."""
        return {name: median(values) for name, values in self.samples.items()}

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the best of PyG's variants."""
        pyg = [value for name, value in self.medians.items() if name.startswith(PYG)]
        return min(pyg) / self.medians[OURS] if pyg else None


@dataclass(frozen=True)
class Step:
    """One contestant in a process of its own.

    Attributes:
        case: what.
        contestant: who.
        milliseconds: an epoch.
        peak: bytes at most, beyond what the process had with the data loaded.
        resident: bytes at most, of the whole process.
    """

    case: str
    contestant: str
    milliseconds: float
    peak: int
    resident: int


@dataclass(frozen=True)
class FirstCall:
    """Seconds to the end of the first epoch in a process, with nothing compiled yet and with all of it."""

    fresh: float
    cached: float


@dataclass(frozen=True)
class Watching:
    """What a recorder costs.

    Attributes:
        case: what is trained.
        epochs: milliseconds of an epoch that is not recorded, by what is recorded of others.
        records: milliseconds that a record adds.
    """

    case: str
    epochs: dict[str, float]
    records: dict[str, float]

    def share(self, name: str, every: int = 1) -> float:
        """Per cent of training time."""
        return 100 * self.records[name] / self.epochs[name] / every


@dataclass(frozen=True)
class Sweep:
    """Milliseconds an epoch, or bytes, of both over one quantity."""

    over: str
    unit: str
    x: list[int]
    ours: list[float]
    pyg: list[float]


@dataclass(frozen=True)
class Note:
    """Why something was not measured."""

    case: str
    reason: str
    failed: bool


@dataclass
class Report:
    """All measurements of one bench, on one machine."""

    machine: dict[str, str] = field(default_factory=dict)
    timings: list[Timing] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    first_call: FirstCall | None = None
    watching: Watching | None = None
    sweeps: list[Sweep] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def timing(self, case: str, threads: int = 1) -> Timing | None:
        """The epochs of a case, if they were timed."""
        return next((t for t in self.timings if (t.case, t.threads) == (case, threads)), None)

    def step(self, case: str, contestant: str = OURS) -> Step | None:
        """What one contestant needed by itself, if it was measured."""
        return next((s for s in self.steps if (s.case, s.contestant) == (case, contestant)), None)

    def sweep(self, over: str, unit: str) -> Sweep | None:
        """How one quantity grows with another, if it was measured."""
        return next((s for s in self.sweeps if (s.over, s.unit) == (over, unit)), None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return asdict(self)


def from_dict(plain: Mapping[str, Any]) -> Report:
    """The report that :meth:`Report.to_dict` has written."""
    return Report(
        machine=dict(plain["machine"]),
        timings=[Timing(**timing) for timing in plain["timings"]],
        steps=[Step(**step) for step in plain["steps"]],
        first_call=FirstCall(**plain["first_call"]) if plain["first_call"] else None,
        watching=Watching(**plain["watching"]) if plain.get("watching") else None,
        sweeps=[Sweep(**sweep) for sweep in plain["sweeps"]],
        notes=[Note(**note) for note in plain["notes"]],
    )


def read_report(path: Path) -> Report:
    """The report in a JSON file."""
    try:
        return from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EquipoiseError(
            f"no report can be read: {type(error).__name__}: {error}",
            where=str(path),
            remedy="name a file that `equipoise bench --json FILE` has written",
        ) from error
