"""A report in tables, for a terminal or as Markdown: cells are gathered first, then set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from equipoise.bench.goals import GOALS
from equipoise.bench.report import OURS, PYG, Report, Sweep, Timing
from equipoise.bench.scaling import LINEAR, Line, fit

MIB = 2**20
LONGEST_NAME = 20  # characters; what is longer is a sentence, and may be broken
UNITS = {"ms": 1.0, "bytes": MIB}


@dataclass(frozen=True)
class Grid:
    """A title, the heads of columns and rows of text; the first columns are words, the others numbers."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: int = 1

    def rich(self) -> Table:
        """For a terminal."""
        table = Table(title=f"\n{self.title}", title_justify="left", box=None, pad_edge=False)
        for place, head in enumerate(self.heads):
            is_word = place < self.words
            short = max(len(row[place]) for row in self.rows) <= LONGEST_NAME
            table.add_column(head, justify="left" if is_word else "right", no_wrap=is_word and short)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """For a document."""
        rules = ["---"] * self.words + ["---:"] * (len(self.heads) - self.words)
        lines = [self.heads, rules, *self.rows]
        return f"**{self.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def grids(report: Report) -> list[Grid]:
    """All tables of a report that have a row."""
    counts = dict.fromkeys(timing.threads for timing in report.timings)
    timings = (_timings([timing for timing in report.timings if timing.threads == count]) for count in counts)
    made = (*timings, _steps(report), _watching(report), _goals(report), _fits(report), _rates(report))
    return [grid for grid in made if grid.rows]


def _timings(timings: Sequence[Timing]) -> Grid:
    contestants = list(dict.fromkeys(name for timing in timings for name in timing.samples))
    rows = []
    for timing in timings:
        epochs = (_number(timing.medians.get(name)) for name in contestants)
        speedup = "" if timing.speedup is None else f"{timing.speedup:.1f} ×"
        rows.append((timing.case, *epochs, speedup, _number(timing.floor)))
    threads = f"{timings[0].threads} thread{'s' * (timings[0].threads > 1)}"
    title = f"Milliseconds an epoch, {threads} (looped: self-loops added beforehand)"
    return Grid(title, ("case", *contestants, "against best PyG", "floor"), rows)


def _steps(report: Report) -> Grid:
    rows = [
        (step.case, step.contestant, _number(step.milliseconds), _bytes(step.peak), _bytes(step.resident))
        for step in report.steps
    ]
    heads = ("case", "who", "ms", "peak MiB above the data", "MiB of the process")
    return Grid(f"In processes of their own ({OURS}: a median epoch, {PYG}: one)", heads, rows, words=2)


def _watching(report: Report) -> Grid:
    rows = []
    if (found := report.watching) is not None:
        for name, record in found.records.items():
            shares = (f"{found.share(name, every):.{digits}f} %" for every, digits in ((1, 1), (25, 2)))
            rows.append((name, f"{record:.2f}", _number(found.epochs[name]), *shares))
    heads = ("recorded", "ms a record", "ms an epoch", "at every epoch", "at every 25th")
    return Grid("What it costs to watch (Cora, 10 layers, 1 thread)", heads, rows)


def _goals(report: Report) -> Grid:
    rows = []
    for goal in GOALS:
        value = goal.quantity(report)
        if value is not None:
            bound = f"{'≥' if goal.least else '≤'} {goal.bound:g} {goal.unit}"
            reached = "yes" if goal.reached(report) else "no"
            rows.append((goal.what, f"{_number(value)} {goal.unit}", bound, reached, goal.case))
    return Grid("To reach", ("what", "measured", "to reach", "reached", "--case"), rows)


def _fits(report: Report) -> Grid:
    rows = []
    for sweep in report.sweeps:
        if sweep.over in LINEAR:
            for who, line in lines(sweep).items():
                unit = "ms" if sweep.unit == "ms" else "MiB"
                per, step = _per(sweep)
                slope = f"{line.slope * step:.3g} {unit} {per}"
                rows.append((f"{'time' if unit == 'ms' else 'memory'} over {sweep.over}", who, slope, f"{line.r2:.4f}"))
    return Grid("Straight lines through the cost of an epoch", ("what", "who", "slope", "R²"), rows, words=2)


def _rates(report: Report) -> Grid:
    rows = [
        (timing.case, *(f"{timing.rates[name] / 1e9:.1f}" for name in ("product", "loop", "gather")))
        for timing in report.timings
        if timing.rates
    ]
    heads = ("case", "matrix product, GFLOP/s", "y ← y + a·x, GFLOP/s", "gather, GB/s")
    return Grid("Rates of this machine in the same runs, one thread", heads, rows)


def scaled(values: Sequence[float], unit: str) -> list[float]:
    """Milliseconds as they are, bytes in MiB."""
    return [value / UNITS[unit] for value in values]


def lines(sweep: Sweep) -> dict[str, Line]:
    """A straight line through the points of each contestant."""
    both = {OURS: sweep.ours, PYG: sweep.pyg}
    return {who: fit(sweep.x, scaled(values, sweep.unit)) for who, values in both.items()}


def _per(sweep: Sweep) -> tuple[str, int]:
    return ("a layer", 1) if sweep.over == "depth" else (f"per 1000 {sweep.over}", 1000)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"


def _bytes(value: int) -> str:
    return f"{value / MIB:.0f}"
