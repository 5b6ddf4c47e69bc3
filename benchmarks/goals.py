"""Performance goals of the project, and a check of a benchmark report against them.

Run ``equipoise bench --huge --json bench.json``, then ``python benchmarks/goals.py bench.json``. The script prints one
line per measured goal and exits with 1 if one of them is missed. ``--markdown`` prints the table as Markdown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from equipoise.bench.report import EQUIPOISE, PYG, BenchReport, TextTable, format_number, read_report
from equipoise.errors import EquipoiseError

GIB, GB = 2**30, 10**9
Quantity = Callable[[BenchReport], float | None]


@dataclass(frozen=True)
class Goal:
    """A quantity of a report and its bound.

    Attributes:
        description: The quantity in words.
        case: The measurement it needs (``equipoise bench --case``).
        quantity: Computes the value; None if it was not measured.
        bound: The value to reach.
        at_least: Whether the bound is a minimum or a maximum.
        unit: Unit of value and bound.
        avx2: The value to reach with AVX2 only; None for the same bound.
    """

    description: str
    case: str
    quantity: Quantity
    bound: float
    at_least: bool
    unit: str
    avx2: float | None = None

    def bound_for(self, report: BenchReport) -> float:
        """The bound for the instruction set of the report."""
        return self.avx2 if self.avx2 is not None and report.machine.get("instructions") == "AVX2" else self.bound

    def is_met(self, report: BenchReport) -> bool | None:
        """Whether the report meets the goal; None if it was not measured."""
        value, bound = self.quantity(report), self.bound_for(report)
        if value is None:
            return None
        return value >= bound if self.at_least else value <= bound


def speedup(case: str) -> Quantity:
    """Epoch time of PyG's fastest variant divided by ours."""

    def quantity(report: BenchReport) -> float | None:
        timing = report.find_timing(case)
        return timing.speedup if timing else None

    return quantity


def isolated_ratio(case: str, field: str) -> Quantity:
    """PyG's time or memory divided by ours, each in its own process."""

    def quantity(report: BenchReport) -> float | None:
        equipoise, pyg = report.find_isolated(case), report.find_isolated(case, PYG)
        return getattr(pyg, field) / max(getattr(equipoise, field), 1) if equipoise and pyg else None

    return quantity


def resident_memory(case: str, unit: int) -> Quantity:
    """Peak memory of the whole process."""

    def quantity(report: BenchReport) -> float | None:
        run = report.find_isolated(case)
        return run.resident / unit if run else None

    return quantity


def epoch_seconds(case: str) -> Quantity:
    """Median time of an epoch."""

    def quantity(report: BenchReport) -> float | None:
        timing = report.find_timing(case)
        return timing.medians[EQUIPOISE] / 1000 if timing else None

    return quantity


def over_roofline(case: str) -> Quantity:
    """Epoch time divided by the roofline."""

    def quantity(report: BenchReport) -> float | None:
        timing = report.find_timing(case)
        return timing.medians[EQUIPOISE] / timing.roofline if timing and timing.roofline else None

    return quantity


def thread_scaling(case: str) -> Quantity:
    """Epoch time on one thread divided by that on two."""

    def quantity(report: BenchReport) -> float | None:
        one, two = report.find_timing(case, 1), report.find_timing(case, 2)
        return one.medians[EQUIPOISE] / two.medians[EQUIPOISE] if one and two else None

    return quantity


def recording_percent(every: int) -> Quantity:
    """Percentage of training time spent on recording all quantities."""
    return lambda report: report.recorder.percent("everything", every) if report.recorder else None


def fresh_call(report: BenchReport) -> float | None:
    """Seconds of the first epoch with an empty kernel cache."""
    return report.first_call.fresh if report.first_call else None


def cached_call(report: BenchReport) -> float | None:
    """Seconds of the first epoch with a filled kernel cache."""
    return report.first_call.cached if report.first_call else None


SPEEDUP = "speed-up over PyG's fastest variant, one thread"
GOALS = (
    Goal(f"Texas, 40 layers: {SPEEDUP}", "texas-40", speedup("texas-40"), 20, True, "×", avx2=15),
    Goal(f"Cora, 2 layers: {SPEEDUP}", "cora-2", speedup("cora-2"), 11, True, "×", avx2=8),
    Goal(f"Citeseer, 2 layers: {SPEEDUP}", "citeseer-2", speedup("citeseer-2"), 11, True, "×", avx2=8),
    Goal(f"Cora, 10 layers: {SPEEDUP}", "cora-10", speedup("cora-10"), 11, True, "×", avx2=7),
    Goal(f"Pubmed, 10 layers: {SPEEDUP}", "pubmed-10", speedup("pubmed-10"), 10, True, "×", avx2=6.5),
    Goal(
        "169k nodes, 2.3M edges, 4 layers: speed-up over PyG",
        "large",
        isolated_ratio("large", "milliseconds"),
        20,
        True,
        "×",
    ),
    Goal(
        "169k nodes, 2.3M edges, 4 layers: PyG's peak memory over ours",
        "large",
        isolated_ratio("large", "peak"),
        20,
        True,
        "×",
    ),
    Goal(
        "2.4M nodes, 62M edges, 3 layers: peak memory of the process",
        "huge",
        resident_memory("huge", GIB),
        9,
        False,
        "GiB",
    ),
    Goal("Cora, 10 layers: epoch over roofline", "cora-10", over_roofline("cora-10"), 1.5, False, "×"),
    Goal("Pubmed, 10 layers: two threads over one", "pubmed-10", thread_scaling("pubmed-10"), 1.6, True, "×"),
    Goal("first epoch, empty kernel cache", "compile", fresh_call, 30, False, "s"),
    Goal("first epoch, filled kernel cache", "compile", cached_call, 1, False, "s"),
    Goal("Cora, 80 layers: epoch, one thread", "cora-80", epoch_seconds("cora-80"), 0.3, False, "s"),
    Goal("Cora, 10 layers: all quantities recorded, every epoch", "recorder", recording_percent(1), 20, False, "%"),
    Goal("Cora, 10 layers: all quantities recorded, every 25th", "recorder", recording_percent(25), 2, False, "%"),
    Goal(
        "Cora, 1000 layers: peak memory of the process", "cora-1000", resident_memory("cora-1000", GB), 8, False, "GB"
    ),
)


def goal_table(report: BenchReport) -> TextTable:
    """One row per measured goal."""
    rows = []
    for goal in GOALS:
        value = goal.quantity(report)
        if value is not None:
            bound = f"{'≥' if goal.at_least else '≤'} {goal.bound_for(report):g} {goal.unit}"
            met = "yes" if goal.is_met(report) else "no"
            rows.append((goal.description, f"{format_number(value)} {goal.unit}", bound, met, goal.case))
    return TextTable("Goals", ("quantity", "measured", "goal", "met", "--case"), rows)


def main(arguments: list[str] | None = None) -> int:
    """Compare a report with the goals; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare a benchmark report with the project's performance goals.")
    parser.add_argument("report", type=Path, help="file written by `equipoise bench --json FILE`")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args(arguments)
    try:
        report = read_report(options.report)
    except EquipoiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = goal_table(report)
    if not table.rows:
        print("none of the goals was measured")
        return 0
    if options.markdown:
        print(table.markdown())
    else:
        Console().print(table.rich())
    return 1 if any(goal.is_met(report) is False for goal in GOALS) else 0


if __name__ == "__main__":
    sys.exit(main())
