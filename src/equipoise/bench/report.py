"""Results of a benchmark: measurements as plain data (to JSON and back), linear fits, and tables.

Tables are gathered as text first and then rendered, for a terminal or as Markdown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

from equipoise.bench.cases import LINEAR_VARIABLES
from equipoise.bench.ranks import RankRun
from equipoise.errors import EquipoiseError

EQUIPOISE, PYG = "equipoise", "PyG"  # the names of PyG's variants start with "PyG"
MIB = 2**20
UNITS = {"ms": 1.0, "bytes": MIB}
THROUGHPUTS = {
    "product": "matrix product, GFLOP/s",
    "blas": "torch.mm, GFLOP/s",
    "loop": "y ← y + a·x, GFLOP/s",
    "gather": "gather, GB/s",
}
LONGEST_NAME = 20  # characters; longer first columns may wrap


@dataclass(frozen=True)
class Timing:
    """Epoch times of all implementations, interleaved in one process.

    Attributes:
        case: Name of the case.
        threads: Number of threads.
        samples: Milliseconds of every epoch, by implementation.
        throughput: Flops and bytes per second, measured between the epochs.
        roofline: Lower bound in milliseconds at this throughput; None with several threads.
    """

    case: str
    threads: int
    samples: dict[str, list[float]]
    throughput: dict[str, float] = field(default_factory=dict)
    roofline: float | None = None

    @property
    def medians(self) -> dict[str, float]:
        """Median milliseconds per epoch, by implementation."""
        return {name: median(values) for name, values in self.samples.items()}

    @property
    def speedup(self) -> float | None:
        """Time of the fastest PyG variant divided by ours; None if PyG was not timed."""
        pyg = [value for name, value in self.medians.items() if name.startswith(PYG)]
        return min(pyg) / self.medians[EQUIPOISE] if pyg else None


@dataclass(frozen=True)
class IsolatedRun:
    """One implementation in its own process.

    Attributes:
        case: Name of the case.
        implementation: ``"equipoise"`` or ``"PyG"``.
        milliseconds: Time per epoch.
        peak: Peak memory in bytes beyond that of the process with the data loaded.
        resident: Peak memory in bytes of the whole process.
    """

    case: str
    implementation: str
    milliseconds: float
    peak: int
    resident: int


@dataclass(frozen=True)
class FirstCall:
    """Seconds until the first epoch of a process is done, with an empty and with a filled kernel cache."""

    fresh: float
    cached: float


@dataclass(frozen=True)
class RecorderCost:
    """Cost of a recorder.

    Attributes:
        case: Name of the case.
        epochs: Milliseconds of an epoch without a record, by recorded group.
        records: Milliseconds that one record adds, by recorded group.
    """

    case: str
    epochs: dict[str, float]
    records: dict[str, float]

    def percent(self, group: str, every: int = 1) -> float:
        """Percentage of training time spent on recording at every so many epochs."""
        return 100 * self.records[group] / self.epochs[group] / every


@dataclass(frozen=True)
class ScalingCurve:
    """Milliseconds per epoch (``unit="ms"``) or peak memory (``"bytes"``) of both implementations over one variable."""

    variable: str
    unit: str
    x: list[int]
    equipoise: list[float]
    pyg: list[float]

    def scaled(self) -> dict[str, list[float]]:
        """Values by implementation, in milliseconds or MiB."""
        values = {EQUIPOISE: self.equipoise, PYG: self.pyg}
        return {name: [value / UNITS[self.unit] for value in column] for name, column in values.items()}

    def fits(self) -> dict[str, LinearFit]:
        """A linear fit by implementation; empty if the cost is not linear in the variable."""
        if self.variable not in LINEAR_VARIABLES:
            return {}
        return {name: linear_fit(self.x, values) for name, values in self.scaled().items()}


@dataclass(frozen=True)
class LinearFit:
    """y = offset + slope · x, and the coefficient of determination R²."""

    offset: float
    slope: float
    r2: float

    def __call__(self, x: float) -> float:
        return self.offset + self.slope * x


def linear_fit(x: Sequence[float], y: Sequence[float]) -> LinearFit:
    """Fit a line by least squares.

    Args:
        x: Abscissae.
        y: Ordinates.

    Returns:
        The line and its R².

    Example:
        >>> line = linear_fit([1, 2, 3], [5.0, 7.0, 9.0])
        >>> round(line.offset, 6), round(line.slope, 6), round(line.r2, 6)
        (3.0, 2.0, 1.0)
    """
    slope, offset = np.polyfit(x, y, 1)
    residuals = np.asarray(y) - (offset + slope * np.asarray(x))
    variance = float(np.square(np.asarray(y) - np.mean(y)).sum())
    r2 = 1 - float(np.square(residuals).sum()) / variance if variance else 1.0
    return LinearFit(float(offset), float(slope), r2)


@dataclass(frozen=True)
class SkippedTask:
    """A measurement that is missing: its data are not available, or it ``failed``."""

    task: str
    reason: str
    failed: bool


@dataclass
class BenchReport:
    """All measurements of one benchmark on one machine."""

    machine: dict[str, str] = field(default_factory=dict)
    timings: list[Timing] = field(default_factory=list)
    isolated: list[IsolatedRun] = field(default_factory=list)
    first_call: FirstCall | None = None
    recorder: RecorderCost | None = None
    scaling: list[ScalingCurve] = field(default_factory=list)
    ranks: list[RankRun] = field(default_factory=list)
    skipped: list[SkippedTask] = field(default_factory=list)

    def find_timing(self, case: str, threads: int = 1) -> Timing | None:
        """The epoch times of a case, if measured."""
        return next((t for t in self.timings if (t.case, t.threads) == (case, threads)), None)

    def find_isolated(self, case: str, implementation: str = EQUIPOISE) -> IsolatedRun | None:
        """The isolated run of an implementation, if measured."""
        return next((r for r in self.isolated if (r.case, r.implementation) == (case, implementation)), None)

    def find_scaling(self, variable: str, unit: str) -> ScalingCurve | None:
        """The scaling curve over a variable, if measured."""
        return next((c for c in self.scaling if (c.variable, c.unit) == (variable, unit)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> BenchReport:
        """Inverse of :meth:`to_dict`."""
        return cls(
            machine=dict(plain["machine"]),
            timings=[Timing(**timing) for timing in plain["timings"]],
            isolated=[IsolatedRun(**run) for run in plain["isolated"]],
            first_call=FirstCall(**plain["first_call"]) if plain["first_call"] else None,
            recorder=RecorderCost(**plain["recorder"]) if plain["recorder"] else None,
            scaling=[ScalingCurve(**curve) for curve in plain["scaling"]],
            ranks=[RankRun(**run) for run in plain.get("ranks", [])],
            skipped=[SkippedTask(**task) for task in plain["skipped"]],
        )


def read_report(path: Path) -> BenchReport:
    """Read a report from a JSON file.

    Args:
        path: File written by ``equipoise bench --json FILE``.

    Returns:
        The report.

    Raises:
        EquipoiseError: If the file cannot be read or is not such a report.
    """
    try:
        return BenchReport.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EquipoiseError(
            f"cannot read a benchmark report: {type(error).__name__}: {error}",
            where=str(path),
            remedy="name a file written by `equipoise bench --json FILE`",
        ) from error


@dataclass(frozen=True)
class TextTable:
    """A table of text: a title, headers and rows; the first ``text_columns`` columns hold words, the others numbers."""

    title: str
    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    text_columns: int = 1

    def rich(self) -> Table:
        """Render for a terminal."""
        table = Table(title=f"\n{self.title}", title_justify="left", box=None, pad_edge=False)
        for column, header in enumerate(self.headers):
            is_text = column < self.text_columns
            short = max(len(row[column]) for row in self.rows) <= LONGEST_NAME
            table.add_column(header, justify="left" if is_text else "right", no_wrap=is_text and short)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """Render as Markdown."""
        rules = ["---"] * self.text_columns + ["---:"] * (len(self.headers) - self.text_columns)
        lines = [self.headers, rules, *self.rows]
        return f"**{self.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report_tables(report: BenchReport) -> list[TextTable]:
    """Return the tables of a report, leaving out empty ones."""
    counts = dict.fromkeys(timing.threads for timing in report.timings)
    timings = (_timing_table([timing for timing in report.timings if timing.threads == count]) for count in counts)
    others = (_isolated_table, _rank_table, _first_call_table, _recorder_table, _fit_table, _throughput_table)
    return [table for table in (*timings, *(make(report) for make in others)) if table.rows]


def format_number(value: float | None) -> str:
    """Three to four significant digits; empty for None."""
    if value is None:
        return ""
    return f"{value:.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"


def _timing_table(timings: Sequence[Timing]) -> TextTable:
    implementations = list(dict.fromkeys(name for timing in timings for name in timing.samples))
    rows = []
    for timing in timings:
        epochs = (format_number(timing.medians.get(name)) for name in implementations)
        speedup = "" if timing.speedup is None else f"{timing.speedup:.1f} ×"
        rows.append((timing.case, *epochs, speedup, format_number(timing.roofline)))
    threads = f"{timings[0].threads} thread{'s' * (timings[0].threads > 1)}"
    title = f"Milliseconds per epoch, {threads} (looped: self-loops added beforehand)"
    return TextTable(title, ("case", *implementations, "speed-up over best PyG", "roofline"), rows)


def _isolated_table(report: BenchReport) -> TextTable:
    rows = [
        (run.case, run.implementation, format_number(run.milliseconds), _mib(run.peak), _mib(run.resident))
        for run in report.isolated
    ]
    headers = ("case", "implementation", "ms per epoch", "peak MiB beyond the data", "peak MiB of the process")
    title = f"One process per implementation ({EQUIPOISE}: median epoch, {PYG}: one epoch)"
    return TextTable(title, headers, rows, text_columns=2)


def _rank_table(report: BenchReport) -> TextTable:
    one = {run.case: run for run in report.ranks if run.ranks == 1}
    rows = []
    for run in report.ranks:
        base = one.get(run.case)
        speedup = f"{base.milliseconds / run.milliseconds:.2f} ×" if base else ""
        memory = f"{max(run.peaks) / max(base.peaks):.2f}" if base else ""
        sent = format_number(run.bytes_sent / MIB)
        rows.append(
            (run.case, str(run.ranks), format_number(run.milliseconds), speedup, _mib(max(run.peaks)), memory, sent)
        )
    headers = ("case", "ranks", "ms per epoch", "speed-up", "peak MiB of a rank", "ratio", "MiB exchanged per epoch")
    return TextTable("One graph on several ranks of one thread", headers, rows)


def _first_call_table(report: BenchReport) -> TextTable:
    rows = []
    if report.first_call is not None:
        rows = [
            ("empty", format_number(report.first_call.fresh)),
            ("filled by an earlier process", format_number(report.first_call.cached)),
        ]
    return TextTable("First epoch in a process, compilation included", ("kernel cache", "seconds"), rows)


def _recorder_table(report: BenchReport) -> TextTable:
    rows = []
    if (cost := report.recorder) is not None:
        for group, record in cost.records.items():
            percentages = (f"{cost.percent(group, every):.{digits}f} %" for every, digits in ((1, 1), (25, 2)))
            rows.append((group, f"{record:.2f}", format_number(cost.epochs[group]), *percentages))
    headers = ("quantities", "ms per record", "ms per epoch", "every epoch", "every 25th epoch")
    return TextTable("Cost of recording (Cora, 10 layers, 1 thread)", headers, rows)


def _fit_table(report: BenchReport) -> TextTable:
    rows = []
    for curve in report.scaling:
        quantity, unit = ("time", "ms") if curve.unit == "ms" else ("memory", "MiB")
        step, per = (1, "per layer") if curve.variable == "depth" else (1000, f"per 1000 {curve.variable}")
        for name, fit in curve.fits().items():
            slope = f"{fit.slope * step:.3g} {unit} {per}"
            rows.append((f"{quantity} over {curve.variable}", name, slope, f"{fit.r2:.4f}"))
    return TextTable("Linear fits of cost per epoch", ("cost", "implementation", "slope", "R²"), rows, text_columns=2)


def _throughput_table(report: BenchReport) -> TextTable:
    rows = [
        (timing.case, *(f"{timing.throughput.get(name, math.nan) / 1e9:.1f}" for name in THROUGHPUTS))
        for timing in report.timings
        if timing.throughput
    ]
    return TextTable("Throughput of this machine in the same runs, one thread", ("case", *THROUGHPUTS.values()), rows)


def _mib(value: int) -> str:
    return f"{value / MIB:.0f}"
