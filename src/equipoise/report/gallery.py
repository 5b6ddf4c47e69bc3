"""The paper's figures by name: which runs of an experiment go where, in which drawing.

What there is is drawn; the caption has the settings, the number of runs, and the cells that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from equipoise.errors import SpecError
from equipoise.experiments.experiment import Cell, Experiment, Value
from equipoise.experiments.result import Result
from equipoise.report.changes import draw_parameter_change, draw_zero_change
from equipoise.report.dynamics import (
    Runs,
    Settings,
    draw_adam_gradients,
    draw_conservation,
    draw_dynamics,
    draw_relative_gradients,
)
from equipoise.report.frames import Frames
from equipoise.report.results import draw_results
from equipoise.report.summary import summarize

NAMED = 6  # missing cells that a caption names
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}


@dataclass(frozen=True)
class Material:
    """An experiment, its results by key, and what was recorded of its runs."""

    experiment: Experiment
    results: Mapping[str, Result]
    frames: Frames

    def frame(self, cell: Cell) -> pd.DataFrame | None:
        """The recording of the cell's first run that has one, and a result."""
        for spec in cell.specs:
            result = self.results.get(spec.key)
            if result is not None and result.test_accuracy is not None:
                frame = self.frames(spec.key)
                if frame is not None:
                    return frame
        return None

    def place(self, cell: Cell) -> dict[str, Value]:
        """Axis → value."""
        return dict(zip(self.experiment.axes, cell.at, strict=True))


def is_drawn(experiment: Experiment) -> bool:
    """Whether there is a drawing of this experiment."""
    return experiment.name in DRAWINGS or _is_plain(experiment)


def draw(experiment: Experiment, results: Mapping[str, Result], frames: Frames) -> Figure:
    """The figure of an experiment from the runs that are there.

    Args:
        experiment: one of the paper's, or one whose ``draws`` are accuracy and epochs against depth.
        results: by key.
        frames: key → frame of the recording, for figures of training dynamics.
    """
    check_drawn(experiment)
    drawing = DRAWINGS.get(experiment.name, _results)
    return drawing(Material(experiment, results, frames))


def check_drawn(experiment: Experiment) -> None:
    """Say what can be drawn, where this cannot."""
    if not is_drawn(experiment):
        raise SpecError(
            f"there is no figure of {experiment.name}",
            remedy=f"one of: {', '.join(DRAWINGS)}; or a file with depth and init in its grid that has "
            'draws = ["accuracy", "epochs"]',
        )


def _is_plain(experiment: Experiment) -> bool:
    return {"depth", "init"} <= set(experiment.axes) and 0 < len(experiment.draws) == len(
        {"accuracy", "epochs"} & set(experiment.draws)
    )


def _results(material: Material, panel: str | None = None) -> Figure:
    """Mean and interval of every cell, against depth; a panel for each value of another axis."""
    experiment = material.experiment
    panel = panel or next((axis for axis in experiment.axes if axis not in ("depth", "init")), None)
    summaries = summarize(experiment, material.results.values())
    rows, missing = [], []
    for cell in experiment.cells:
        place, summary = material.place(cell), summaries[cell.at]
        if summary.accuracy is None or summary.epochs is None:
            missing.append(cell)
            continue
        row = {"depth": place["depth"], "scheme": place["init"]}
        row |= {panel: place.get(panel, getattr(cell.specs[0], panel, ""))} if panel else {}
        row |= {"accuracy": summary.accuracy.mean, "accuracy_ci": summary.accuracy.ci}
        rows.append({**row, "epochs": summary.epochs.mean, "epochs_ci": summary.epochs.ci})
    if not rows:
        raise _nothing(experiment)
    runs = sum(summary.n for summary in summaries.values())
    measures = tuple(name for name in ("accuracy", "epochs") if name in experiment.draws)
    return draw_results(pd.DataFrame(rows), _settings(experiment, runs, missing), panel, measures)


def _conservation(material: Material) -> Figure:
    cells = {str(cell.at[0]): cell for cell in material.experiment.cells}
    panels = (
        {"GD": "delta-gd", "Adam": "delta-adam"},
        {"xav": "c-xav", "bal-o": "c-bal-o"},
    )
    residuals, imbalances = (
        {
            title: frame
            for title, variant in chosen.items()
            if variant in cells and (frame := material.frame(cells[variant])) is not None
        }
        for chosen in panels
    )
    drawn = len(residuals) + len(imbalances)
    return draw_conservation(residuals, imbalances, _recorded_settings(material, drawn))


def _one_depth(drawing: Callable[[Runs, Settings], Figure], material: Material) -> Figure:
    runs = _by_start(material, material.experiment.cells)
    return drawing(runs, _recorded_settings(material, len(runs)))


def _depths(drawing: Callable[[Mapping[int, Runs], Settings], Figure], material: Material) -> Figure:
    cells = material.experiment.cells
    depths = {
        depth: runs
        for depth in dict.fromkeys(cell.specs[0].depth for cell in cells)
        if (runs := _by_start(material, [cell for cell in cells if cell.specs[0].depth == depth]))
    }
    return drawing(depths, _recorded_settings(material, sum(map(len, depths.values()))))


def _by_start(material: Material, cells: tuple[Cell, ...] | list[Cell]) -> dict[str, pd.DataFrame]:
    found = {cell.specs[0].init: material.frame(cell) for cell in cells}
    return {init: frame for init, frame in found.items() if frame is not None}


DRAWINGS: dict[str, Callable[[Material], Figure]] = {
    "cora-widths": partial(_results, panel="width"),
    "adam": partial(_results, panel="dataset"),
    "inits": partial(_results, panel="dataset"),
    "omega-gat": _results,
    "conservation": _conservation,
    "dynamics-5": partial(_one_depth, partial(draw_dynamics, moved="moved")),
    "dynamics-10": partial(_one_depth, partial(draw_dynamics, moved="moved_half")),
    "relative-gradients": partial(_one_depth, draw_relative_gradients),
    "zero-change": partial(_depths, draw_zero_change),
    "parameter-change": partial(_depths, draw_parameter_change),
    "adam-gradients": partial(_depths, draw_adam_gradients),
}


def _recorded_settings(material: Material, drawn: int) -> Settings:
    if not drawn:
        raise _nothing(material.experiment)
    missing = [cell for cell in material.experiment.cells if material.frame(cell) is None]
    return _settings(material.experiment, drawn, missing)


def _settings(experiment: Experiment, runs: int, missing: list[Cell]) -> Settings:
    """What the caption says: what all runs have in common, how many there are, and what is not there."""
    specs = experiment.specs
    settings: dict[str, object] = {}
    for title, name in (("data set", "dataset"), ("layers", "depth"), ("kind", "kind"), ("width", "width")):
        values = list(dict.fromkeys(getattr(spec, name) for spec in specs))
        if len(values) == 1 or name == "dataset":
            settings[title] = ", ".join(map(str, values))
    for optimizer in dict.fromkeys(spec.optimizer for spec in specs):
        rates: dict[float, list[int]] = {}
        for spec in specs:
            if spec.optimizer == optimizer:
                rates.setdefault(spec.lr, []).append(spec.depth)
        settings[OPTIMIZERS.get(optimizer, optimizer)] = ", ".join(
            f"{lr:g}" if len(rates) == 1 else f"{lr:g} (L = {', '.join(map(str, dict.fromkeys(depths)))})"
            for lr, depths in rates.items()
        )
    settings["at most"] = " and ".join(str(epochs) for epochs in sorted({spec.epochs for spec in specs})) + " epochs"
    wanted = len(specs) if set(experiment.draws) <= {"accuracy", "epochs"} else len(experiment.cells)
    settings["runs"] = f"{runs} of {wanted}"
    if missing:
        named = [" ".join(f"L={v}" if a == "depth" else str(v) for a, v in _place(experiment, c)) for c in missing]
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        settings["missing"] = "; ".join(named[:NAMED]) + more
    return settings


def _place(experiment: Experiment, cell: Cell) -> list[tuple[str, Value]]:
    return list(zip(experiment.axes, cell.at, strict=True))


def _nothing(experiment: Experiment) -> SpecError:
    return SpecError(
        f"no run of {experiment.name} is there to be drawn, or none of them was recorded",
        where=experiment.remark,
        remedy=f"equipoise reproduce {experiment.name} --figure",
    )
