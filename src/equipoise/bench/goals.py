"""What is to be reached, row by row, and what was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from equipoise.bench.report import OURS, PYG, Report

GIB, GB = 2**30, 10**9
Quantity = Callable[[Report], float | None]


@dataclass(frozen=True)
class Goal:
    """A quantity of a report, and its bound.

    Attributes:
        what: in words.
        case: which measurement it needs (``equipoise bench --case``).
        quantity: the number; none if it was not measured.
        bound: what it is to reach.
        least: whether that is the least, or the most, it may be.
        unit: of both.
    """

    what: str
    case: str
    quantity: Quantity
    bound: float
    least: bool
    unit: str

    def reached(self, report: Report) -> bool | None:
        """Whether the report reaches it; none if it was not measured."""
        value = self.quantity(report)
        if value is None:
            return None
        return value >= self.bound if self.least else value <= self.bound

    def to_dict(self, report: Report) -> dict[str, Any]:
        """The goal and what came of it, for JSON."""
        plain = {name: getattr(self, name) for name in ("what", "case", "bound", "least", "unit")}
        return plain | {"measured": self.quantity(report), "reached": self.reached(report)}


def _speedup(case: str) -> Quantity:
    def of(report: Report) -> float | None:
        timing = report.timing(case)
        return timing.speedup if timing else None

    return of


def _steps_ratio(case: str, quantity: str) -> Quantity:
    def of(report: Report) -> float | None:
        mine, theirs = report.step(case), report.step(case, PYG)
        return getattr(theirs, quantity) / max(getattr(mine, quantity), 1) if mine and theirs else None

    return of


def _resident(case: str, unit: int) -> Quantity:
    def of(report: Report) -> float | None:
        step = report.step(case)
        return step.resident / unit if step else None

    return of


def _epoch_seconds(case: str) -> Quantity:
    def of(report: Report) -> float | None:
        timing = report.timing(case)
        return timing.medians[OURS] / 1000 if timing else None

    return of


def _over_floor(case: str) -> Quantity:
    def of(report: Report) -> float | None:
        timing = report.timing(case)
        return timing.medians[OURS] / timing.floor if timing and timing.floor else None

    return of


def _two_threads(case: str) -> Quantity:
    def of(report: Report) -> float | None:
        one, two = report.timing(case, 1), report.timing(case, 2)
        return one.medians[OURS] / two.medians[OURS] if one and two else None

    return of


def _first_call(report: Report) -> float | None:
    return report.first_call.fresh if report.first_call else None


def _cached_call(report: Report) -> float | None:
    return report.first_call.cached if report.first_call else None


def _recorded(every: int) -> Quantity:
    return lambda report: report.watching.share("everything", every) if report.watching else None


FASTER = "epoch against PyG's best, one thread"
GOALS = (
    Goal(f"Cora, 10 layers: {FASTER}", "cora-10", _speedup("cora-10"), 10, True, "×"),
    Goal(f"Cora, 2 layers: {FASTER}", "cora-2", _speedup("cora-2"), 12, True, "×"),
    Goal(f"Citeseer, 2 layers: {FASTER}", "citeseer-2", _speedup("citeseer-2"), 12, True, "×"),
    Goal(f"Pubmed, 10 layers: {FASTER}", "pubmed-10", _speedup("pubmed-10"), 8, True, "×"),
    Goal(
        "169k nodes, 2.3M edges, 4 layers: epoch against PyG's",
        "large",
        _steps_ratio("large", "milliseconds"),
        20,
        True,
        "×",
    ),
    Goal("the same: PyG's peak memory against ours", "large", _steps_ratio("large", "peak"), 20, True, "×"),
    Goal("2.4M nodes, 62M edges, 3 layers: memory of the process", "huge", _resident("huge", GIB), 20, False, "GiB"),
    Goal("Cora, 10 layers: epoch against the floor", "cora-10", _over_floor("cora-10"), 1.5, False, "×"),
    Goal("Pubmed, 10 layers: two threads against one", "pubmed-10", _two_threads("pubmed-10"), 1.6, True, "×"),
    Goal("first call, nothing compiled yet", "compile", _first_call, 30, False, "s"),
    Goal("first call, compiled before", "compile", _cached_call, 1, False, "s"),
    Goal("Cora, 80 layers: epoch, one thread", "cora-80", _epoch_seconds("cora-80"), 0.3, False, "s"),
    Goal("Cora, 10 layers: everything recorded, at every epoch", "recorder", _recorded(1), 20, False, "%"),
    Goal("the same at every 25th", "recorder", _recorded(25), 2, False, "%"),
    Goal("Cora, 1000 layers: memory of the process", "cora-1000", _resident("cora-1000", GB), 8, False, "GB"),
)
