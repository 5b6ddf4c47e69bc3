"""Charts of accuracy against depth for the HTML page: one panel per data set, ours beside the published numbers.

This module computes coordinates only. The page's template draws them as SVG with the page's own colours, so that the
charts follow its light and dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from equipoise.experiments.experiment import Coordinates, Experiment
from equipoise.report.summary import Estimate, TableRow

WIDTH, HEIGHT = 250, 190  # of a panel, in pixels
LEFT, RIGHT, TOP, BOTTOM = 30, 240, 24, 160
TICK = 20  # percent
SPREAD = 0.4  # share of the distance between two depths over which the schemes are spread
PAPER_OFFSET = 4  # pixels from our mark to the published one


@dataclass(frozen=True)
class Mark:
    """A mean with its interval, in pixels; ``low`` and ``high`` are equal without an interval."""

    x: float
    y: float
    low: float
    high: float
    label: str


@dataclass(frozen=True)
class Series:
    """The means of one scheme, and the published ones."""

    scheme: str
    ours: tuple[Mark, ...]
    paper: tuple[Mark, ...]


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: values of the axes other than depth and scheme.
        series: one per scheme.
        x_ticks, y_ticks: (position, text).
        constant: (position, text) of the score of a constant prediction, if the panel has one data set.
    """

    title: str
    series: tuple[Series, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    constant: tuple[float, str] | None

    @property
    def has_runs(self) -> bool:
        """Whether the panel has numbers of ours."""
        return any(series.ours for series in self.series)

    @property
    def has_published(self) -> bool:
        """Whether the panel has published numbers."""
        return any(series.paper for series in self.series)


def depth_panels(experiment: Experiment, rows: Sequence[TableRow]) -> list[Panel]:
    """Lay out the cells of an experiment as panels of accuracy against depth.

    Args:
        experiment: an experiment that varies depth and scheme.
        rows: its rows, of :func:`~equipoise.report.summary.table_rows`.

    Returns:
        One panel per combination of the other axes that has numbers, all on one scale; empty if the experiment does
        not vary both, or no cell has runs.
    """
    axes = list(experiment.axes)
    if not {"depth", "init"} <= set(axes) or not any(row.ours.accuracy for row in rows):
        return []
    others = [index for index, axis in enumerate(axes) if axis not in ("depth", "init")]
    groups: dict[Coordinates, list[TableRow]] = {}
    for row in rows:
        if row.ours.accuracy or row.paper:
            groups.setdefault(tuple(row.coordinates[index] for index in others), []).append(row)
    means = [
        estimate.mean
        for group in groups.values()
        for row in group
        for estimate in (row.ours.accuracy, row.paper)
        if estimate
    ]
    top = min(100.0, max(*means, *(row.ours.constant for group in groups.values() for row in group)) + 3)
    depth, init = axes.index("depth"), axes.index("init")
    schemes = [str(scheme) for scheme in experiment.axes["init"]]
    panels = []
    for values, group in groups.items():
        cells = {(int(str(row.coordinates[depth])), str(row.coordinates[init])): row for row in group}
        panels.append(_panel(" ".join(map(str, values)), cells, schemes, top))
    return sorted(panels, key=lambda panel: not panel.has_runs)


def _panel(title: str, cells: Mapping[tuple[int, str], TableRow], schemes: Sequence[str], top: float) -> Panel:
    """Lay out one panel from its rows by depth and scheme."""
    depths = sorted({depth for depth, _ in cells})
    step = (RIGHT - LEFT) / len(depths)
    positions = {depth: LEFT + step * (index + 0.5) for index, depth in enumerate(depths)}
    series = []
    for number, scheme in enumerate(schemes):
        shift = step * SPREAD * (number / max(len(schemes) - 1, 1) - 0.5)
        own = [(depth, cells[depth, scheme]) for depth in depths if (depth, scheme) in cells]
        ours = tuple(
            _mark(positions[depth] + shift, row.ours.accuracy, top, f"{scheme}, L = {depth}: ours", row.ours.n)
            for depth, row in own
            if row.ours.accuracy
        )
        paper = tuple(
            _mark(positions[depth] + shift + PAPER_OFFSET, row.paper, top, f"{scheme}, L = {depth}: paper")
            for depth, row in own
            if row.paper
        )
        if ours or paper:
            series.append(Series(scheme, ours, paper))
    constants = {row.ours.constant for row in cells.values()}
    constant = constants.pop() if len(constants) == 1 else None
    return Panel(
        title=title,
        series=tuple(series),
        x_ticks=tuple((x, str(depth)) for depth, x in positions.items()),
        y_ticks=tuple((_y(value, top), str(value)) for value in range(0, math.floor(top) + 1, TICK)),
        constant=None if constant is None else (_y(constant, top), f"a constant prediction: {constant:.1f}"),
    )


def _mark(x: float, estimate: Estimate, top: float, label: str, n: int = 0) -> Mark:
    ci = 0.0 if math.isnan(estimate.ci) else estimate.ci
    low, high = max(estimate.mean - ci, 0.0), min(estimate.mean + ci, top)
    text = f"{label} {estimate.text(1)}" + (f", {n} run{'s' if n != 1 else ''}" if n else "")
    return Mark(round(x, 1), _y(estimate.mean, top), _y(low, top), _y(high, top), text)


def _y(value: float, top: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * value / top, 1)
