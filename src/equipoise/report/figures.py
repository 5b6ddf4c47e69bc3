"""Registry of figures: an experiment's file names its figure, and this module selects the runs that it draws.

Figures are drawn from the runs that are available. The caption lists settings, number of runs and missing cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan

import pandas as pd
from matplotlib.figure import Figure

from equipoise.errors import SpecError
from equipoise.experiments.experiment import Cell, Experiment, Value
from equipoise.experiments.result import Result
from equipoise.experiments.spec import RunSpec
from equipoise.report.frames import FrameLoader
from equipoise.report.plots.accuracy import CONSTANT, MEASURES, draw_accuracy
from equipoise.report.plots.changes import draw_parameter_change, draw_zero_change
from equipoise.report.plots.dynamics import (
    SchemeFrames,
    Settings,
    draw_adam_gradients,
    draw_conservation,
    draw_dynamics,
    draw_relative_gradients,
)
from equipoise.report.summary import Estimate, group_by_scheme, summarize

MAX_MISSING_LISTED = 6
PUBLISHED = {"accuracy": "accuracy", "accuracy_ci": "ci"}  # column → published measure
NO_RUNS = Estimate(nan, n=0)
OPTIMIZER_TITLES = {"sgd": "SGD", "adam": "Adam"}
# Panels of the conservation figure: title or scheme → variant of the experiment.
RESIDUAL_VARIANTS = {"GD": "delta-gd", "Adam": "delta-adam"}
IMBALANCE_VARIANTS = {"xav": "c-xav", "bal-o": "c-bal-o"}


@dataclass(frozen=True)
class ExperimentRuns:
    """An experiment with the results of its runs and a loader for their recordings."""

    experiment: Experiment
    results: Mapping[str, Result]
    load_frame: FrameLoader

    def first_frame(self, specs: Iterable[RunSpec]) -> pd.DataFrame | None:
        """Recording of the first run that has both a test accuracy and a recording."""
        for spec in specs:
            result = self.results.get(spec.key)
            if result is not None and result.test_accuracy is not None:
                frame = self.load_frame(spec.key)
                if frame is not None:
                    return frame
        return None

    def frames_by_scheme(self) -> list[tuple[int, dict[str, pd.DataFrame]]]:
        """Depth and recordings by scheme, for every group of runs that differ only in scheme and seed."""
        return [
            (
                next(iter(group.values()))[0].depth,
                {scheme: frame for scheme, specs in group.items() if (frame := self.first_frame(specs)) is not None},
            )
            for group in group_by_scheme(self.experiment.specs)
        ]

    def recording_settings(self, drawn: int) -> Settings:
        """Caption settings of a figure with ``drawn`` recordings; raises a SpecError if there are none."""
        if not drawn:
            raise _no_runs_error(self.experiment, f"no run of {self.experiment.name} in the store has a recording")
        cells = self.experiment.cells
        missing = [cell for cell in cells if self.first_frame(cell.specs) is None]
        return _caption_settings(self.experiment, f"{drawn} of {len(cells)}", missing)


def has_figure(experiment: Experiment) -> bool:
    """Whether the experiment has a figure."""
    return figure_name(experiment) is not None


def figure_name(experiment: Experiment) -> str | None:
    """Return the name of the experiment's figure.

    Args:
        experiment: experiment, possibly without a ``figure`` in its file.

    Returns:
        The name from the file; otherwise ``"accuracy"`` if the experiment varies depth and init and draws nothing but
        accuracy and epochs; otherwise None.
    """
    if experiment.figure is not None:
        return experiment.figure
    draws = set(experiment.draws)
    return "accuracy" if draws and draws <= set(MEASURES) and {"depth", "init"} <= set(experiment.axes) else None


def check_figure(experiment: Experiment) -> None:
    """Check that the experiment's figure can be drawn, whether or not there are runs.

    Args:
        experiment: experiment to check.

    Raises:
        SpecError: if the experiment has no figure, names an unknown one, or lacks an axis that the figure needs.
    """
    name = figure_name(experiment)
    choices = f"set figure in its file to one of: {', '.join(FIGURES)}"
    if name is None:
        raise SpecError(f"there is no figure of {experiment.name}", remedy=choices)
    if name not in FIGURES:
        raise SpecError(f"unknown figure {name!r}", where=experiment.name, remedy=choices)
    if name == "accuracy" and not {"depth", "init"} <= set(experiment.axes):
        raise SpecError(
            "the figure 'accuracy' needs several depths and schemes",
            where=experiment.name,
            remedy="list depth and init in the grid",
        )


def draw_figure(experiment: Experiment, results: Mapping[str, Result], load_frame: FrameLoader) -> Figure:
    """Draw the figure of an experiment from the available runs.

    Args:
        experiment: experiment with a figure.
        results: results by run key.
        load_frame: loads the recording of a run by its key; used by figures of training dynamics.

    Returns:
        The figure.

    Raises:
        SpecError: if the figure cannot be drawn, or none of its runs is available.
    """
    check_figure(experiment)
    return FIGURES[figure_name(experiment) or ""](ExperimentRuns(experiment, results, load_frame))


def _accuracy_figure(runs: ExperimentRuns) -> Figure:
    """Mean and interval of every cell against depth, with one panel per value of the remaining axis."""
    experiment = runs.experiment
    panel = next((axis for axis in experiment.axes if axis not in ("depth", "init")), "dataset")
    summaries = summarize(experiment, runs.results.values())
    rows, missing, started = [], [], set()
    has_published = any("accuracy" in cells for cells in experiment.published.values())
    for cell in experiment.cells:
        position, summary = _position(experiment, cell), summaries[cell.coordinates]
        published = experiment.published.get(cell.coordinates, {})
        accuracy, epochs = summary.accuracy or NO_RUNS, summary.epochs or NO_RUNS
        row = {"depth": position["depth"], "scheme": position["init"], CONSTANT: summary.constant}
        row[panel] = position.get(panel, getattr(cell.specs[0], panel, ""))
        row |= {"accuracy": accuracy.mean, "accuracy_ci": accuracy.ci, "epochs": epochs.mean, "epochs_ci": epochs.ci}
        if has_published:
            row |= {f"paper_{name}": published.get(key, nan) for name, key in PUBLISHED.items()}
        if summary.n:
            started.add(row[panel])
        else:
            missing.append(cell)
        if summary.n or "accuracy" in published:
            rows.append(row)
    rows = [row for row in rows if row[panel] in started]  # a panel with the paper's numbers only shows nothing of ours
    if not rows:
        raise _no_runs_error(experiment, f"no run of {experiment.name} is in the store")
    count = f"{sum(summary.n for summary in summaries.values())} of {len(experiment.specs)}"
    measures = tuple(name for name in MEASURES if name in experiment.draws) or tuple(MEASURES)
    return draw_accuracy(pd.DataFrame(rows), _caption_settings(experiment, count, missing), panel, measures)


def _conservation_figure(runs: ExperimentRuns) -> Figure:
    cells = {str(cell.coordinates[0]): cell for cell in runs.experiment.cells}
    residuals, imbalances = (
        {
            title: frame
            for title, variant in variants.items()
            if variant in cells and (frame := runs.first_frame(cells[variant].specs)) is not None
        }
        for variants in (RESIDUAL_VARIANTS, IMBALANCE_VARIANTS)
    )
    return draw_conservation(residuals, imbalances, runs.recording_settings(len(residuals) + len(imbalances)))


def _dynamics_figure(runs: ExperimentRuns) -> Figure:
    """As in the paper, count changes over 5 % up to five layers and over 50 % in deeper networks."""
    moved = "moved" if max(spec.depth for spec in runs.experiment.specs) <= 5 else "moved_half"
    return _scheme_figure(partial(draw_dynamics, moved=moved), runs)


def _scheme_figure(draw: Callable[[SchemeFrames, Settings], Figure], runs: ExperimentRuns) -> Figure:
    """Draw runs that differ only in their scheme."""
    groups = runs.frames_by_scheme()
    if len(groups) > 1:
        raise _too_many_settings_error(runs.experiment, "init and seed")
    ((_, frames),) = groups
    return draw(frames, runs.recording_settings(len(frames)))


def _depth_figure(draw: Callable[[Mapping[int, SchemeFrames], Settings], Figure], runs: ExperimentRuns) -> Figure:
    """Draw runs that differ only in depth and scheme, and in settings that depend on depth."""
    groups = runs.frames_by_scheme()
    if len(groups) > len({depth for depth, _ in groups}):
        raise _too_many_settings_error(runs.experiment, "depth, init and seed")
    depths = {depth: frames for depth, frames in groups if frames}
    return draw(depths, runs.recording_settings(sum(map(len, depths.values()))))


FIGURES: dict[str, Callable[[ExperimentRuns], Figure]] = {
    "accuracy": _accuracy_figure,
    "conservation": _conservation_figure,
    "dynamics": _dynamics_figure,
    "relative-gradients": partial(_scheme_figure, draw_relative_gradients),
    "zero-change": partial(_depth_figure, draw_zero_change),
    "parameter-change": partial(_depth_figure, draw_parameter_change),
    "adam-gradients": partial(_depth_figure, draw_adam_gradients),
}


def _caption_settings(experiment: Experiment, runs: str, missing: Sequence[Cell]) -> Settings:
    """Settings that all runs share, learning rates, number of runs, and missing cells."""
    specs = experiment.specs
    settings: dict[str, object] = {}
    for title, name in (("data set", "dataset"), ("layers", "depth"), ("kind", "kind"), ("width", "width")):
        values = list(dict.fromkeys(getattr(spec, name) for spec in specs))
        if len(values) == 1 or name == "dataset":
            settings[title] = ", ".join(map(str, values))
    for optimizer in dict.fromkeys(spec.optimizer for spec in specs):
        rates = _learning_rates([spec for spec in specs if spec.optimizer == optimizer])
        settings[OPTIMIZER_TITLES.get(optimizer, optimizer)] = rates
    settings["at most"] = " and ".join(str(epochs) for epochs in sorted({spec.epochs for spec in specs})) + " epochs"
    settings["runs"] = runs
    if missing:
        labels = [
            " ".join(f"L={value}" if axis == "depth" else str(value) for axis, value in position.items())
            for position in (_position(experiment, cell) for cell in missing)
        ]
        more = f" and {len(labels) - MAX_MISSING_LISTED} more" if len(labels) > MAX_MISSING_LISTED else ""
        settings["missing"] = "; ".join(labels[:MAX_MISSING_LISTED]) + more
    return settings


def _learning_rates(specs: Sequence[RunSpec]) -> str:
    """The learning rate, or the depths of each; only their range where runs of one depth have several."""
    depths_by_rate: dict[float, list[int]] = {}
    for spec in specs:
        depths = depths_by_rate.setdefault(spec.lr, [])
        if spec.depth not in depths:
            depths.append(spec.depth)
    if len(depths_by_rate) == 1:
        return f"{specs[0].lr:g}"
    if sum(map(len, depths_by_rate.values())) > len({spec.depth for spec in specs}):
        return f"{min(depths_by_rate):g} to {max(depths_by_rate):g}"
    return ", ".join(f"{rate:g} (L = {', '.join(map(str, depths))})" for rate, depths in depths_by_rate.items())


def _position(experiment: Experiment, cell: Cell) -> dict[str, Value]:
    """Axis → value of a cell."""
    return dict(zip(experiment.axes, cell.coordinates, strict=True))


def _no_runs_error(experiment: Experiment, what: str) -> SpecError:
    return SpecError(what, where=experiment.remark, remedy=f"equipoise reproduce {experiment.name} --figure")


def _too_many_settings_error(experiment: Experiment, allowed: str) -> SpecError:
    return SpecError(
        f"the runs of a {figure_name(experiment)!r} figure may differ only in {allowed}",
        where=experiment.name,
        remedy="draw a subset of the grid, or split the experiment",
    )
