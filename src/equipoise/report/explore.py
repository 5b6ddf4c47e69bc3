"""Numbers for the page's own charts: training curves and what was recorded, thinned out to what a screen can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from equipoise.experiments.experiment import Experiment
from equipoise.experiments.result import Result
from equipoise.experiments.spec import DEFAULTS, RunSpec
from equipoise.experiments.store import Store
from equipoise.report.frames import frames_of

NUMBERS = 200_000  # of all curves together: a megabyte or two of text
FEWEST, MOST = 25, 250  # points of one curve
COLUMNS = 60  # epochs of a heat map

MEASURES = {"loss": "training loss", "val_accuracy": "validation accuracy (%)", "test_accuracy": "test accuracy (%)"}
QUANTITIES = {
    "gradient/features": "relative gradient of feature weights, ‖∇W‖/‖W‖",
    "gradient/attention": "relative gradient of attention, ‖∇a‖/‖a‖",
    "update/size": "size of a step, ‖Δθ‖/‖θ‖",
    "change/features": "mean relative change of feature weights since the start",
    "change/moved": "share of feature weights that changed by more than 5 %",
    "change/moved_half": "share of feature weights that changed by more than 50 %",
    "change/unchanged_features": "share of feature weights that did not change at all",
    "change/attention": "mean change of attention since the start",
    "change/unchanged_attention": "share of attention that did not change at all",
    "representation/dirichlet": "Dirichlet energy of what the layer writes",
    "representation/mad": "mean average distance of what the layer writes",
    "attention/entropy": "entropy of attention, 1 where it is uniform",
    "balance/c": "imbalance |c|, largest of the layer's neurons",
    "balance/delta": "residual |δ|, largest of the layer's neurons",
}
CONTRAST = ("xav", "bal-o")  # what a reader compares first
SPREADS = ("gradient", "update", "balance", "representation")  # over orders of magnitude: drawn by logarithm


def explored(experiments: Sequence[Experiment], store: Store) -> dict[str, Any]:
    """What the page's script reads: runs with their curves, the runs of each target, and recordings by layer."""
    wanted = dict.fromkeys(spec.key for experiment in experiments for spec in experiment.specs)
    results = {key: result for key, result in store.results(wanted, curves=True).items() if result.curves}
    places = {key: place for place, key in enumerate(results)}
    points = int(min(MOST, max(FEWEST, NUMBERS / (len(MEASURES) * max(len(results), 1)))))
    targets = (
        {"name": experiment.name, "runs": [places[spec.key] for spec in experiment.specs if spec.key in places]}
        for experiment in experiments
    )
    frames = frames_of(store)
    recorded = [key for key in store.recorded() if key in places]
    return {
        "measures": MEASURES,
        "quantities": {
            name: {"title": title, "log": name.split("/")[0] in SPREADS} for name, title in QUANTITIES.items()
        },
        "runs": [_run(result, points) for result in results.values()],
        "targets": [target for target in targets if target["runs"]],
        "layers": [
            {"run": places[key], **_layers(frame)}
            for key in side_by_side({key: results[key].spec for key in recorded})
            if (frame := frames(key)) is not None
        ],
    }


def side_by_side(specs: Mapping[str, RunSpec]) -> list[str]:
    """Runs that differ in nothing but their start next to each other, most starts and most layers first.

    Example:
        >>> runs = {"a": (5, "bal-o"), "b": (10, "xav"), "c": (5, "xav")}
        >>> one = dict(dataset="cora", lr=0.1, seed=0)
        >>> side_by_side({key: RunSpec(**one, depth=depth, init=init) for key, (depth, init) in runs.items()})
        ['c', 'a', 'b']
    """
    alike: dict[str, list[str]] = {}
    for key, spec in specs.items():
        alike.setdefault(replace(spec, init=CONTRAST[0]).key, []).append(key)

    def place(key: str) -> int:
        return CONTRAST.index(specs[key].init) if specs[key].init in CONTRAST else len(CONTRAST)

    groups = sorted(alike.values(), key=lambda group: (-len(group), -specs[group[0]].depth))
    return [key for group in groups for key in sorted(group, key=place)]


def _run(result: Result, points: int) -> dict[str, Any]:
    spec = result.spec
    settings = {name: value for name, value in spec.to_dict().items() if value != DEFAULTS.get(name)}
    chosen = _sample(result.epochs, points, power=2.0)  # most happens early
    percent = {"loss": 1.0}
    return {
        "key": result.key,
        "label": f"{spec.label}, {spec.kind} width {spec.width}, {spec.optimizer} {spec.lr:g}, {spec.epochs} epochs",
        "settings": ", ".join(f"{name} {value}" for name, value in settings.items()),
        "outcome": result.outcome,
        "best": result.best_epoch,
        "accuracy": None if result.test_accuracy is None else round(100 * result.test_accuracy, 2),
        "epochs": [int(epoch) + 1 for epoch in chosen],
        "curves": {
            name: rounded(percent.get(name, 100.0) * curve[chosen])
            for name, curve in result.curves.items()
            if name in MEASURES and len(curve) == result.epochs
        },
    }


def _layers(frame: pd.DataFrame) -> dict[str, Any]:
    """Quantity → a row a layer, a column an epoch; of neurons the largest in absolute value."""
    rows = frame[frame["quantity"].isin(list(QUANTITIES)) & frame["layer"].notna()]
    tables: Mapping[Any, pd.DataFrame] = dict(list(rows.groupby("quantity")))
    found: dict[str, dict[str, Any]] = {}
    for name in QUANTITIES:
        if name not in tables:
            continue
        table = tables[name].assign(value=tables[name]["value"].abs())
        grid = table.pivot_table(index="layer", columns="epoch", values="value", aggfunc="max")
        grid = grid.iloc[:, _sample(grid.shape[1], COLUMNS)]
        found[name] = {
            "layers": [int(layer) for layer in grid.index],
            "epochs": [int(epoch) for epoch in grid.columns],
            "values": [rounded(row, 3) for row in grid.to_numpy(dtype=float)],
        }
    return {"quantities": found}


def _sample(count: int, most: int, power: float = 1.0) -> np.ndarray:
    """Places of at most so many, with the first and the last: evenly spaced, or with a power closer at the start.

    Example:
        >>> _sample(9, 3).tolist(), _sample(9, 3, power=2.0).tolist(), _sample(3, 4, power=2.0).tolist()
        ([0, 4, 8], [0, 2, 8], [0, 1, 2])
    """
    if count <= most:
        return np.arange(count)
    return np.unique(((count - 1) * np.linspace(0, 1, most) ** power).round().astype(int))


def rounded(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """As many digits as a reader can use; None for what is not finite, which JSON does not have."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]
