"""Data of the HTML page's interactive charts: training curves and recordings, downsampled for the screen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data.catalog import METRIC_TITLES
from equipoise.experiments.experiment import Experiment
from equipoise.experiments.result import Result
from equipoise.experiments.spec import DEFAULTS, RunSpec
from equipoise.experiments.store import Store
from equipoise.report.frames import frame_loader
from equipoise.report.summary import group_by_scheme

MAX_VALUES = 200_000  # over all curves: one to two megabytes of JSON
MIN_POINTS, MAX_POINTS = 25, 250  # points of one curve
MAX_COLUMNS = 60  # epochs of a heat map

MEASURES = {"loss": "training loss", "val_accuracy": "validation accuracy (%)", "test_accuracy": "test accuracy (%)"}
QUANTITIES = {
    "gradient/features": "relative gradient of feature weights, ‖∇W‖/‖W‖",
    "gradient/attention": "relative gradient of attention, ‖∇a‖/‖a‖",
    "update/size": "relative size of an update, ‖Δθ‖/‖θ‖",
    "change/features": "mean relative change of feature weights since initialisation",
    "change/moved": "share of feature weights that changed by more than 5 %",
    "change/moved_half": "share of feature weights that changed by more than 50 %",
    "change/unchanged_features": "share of unchanged feature weights",
    "change/attention": "mean change of attention since initialisation",
    "change/unchanged_attention": "share of unchanged attention weights",
    "representation/dirichlet": "Dirichlet energy of the layer's output",
    "representation/mad": "mean average distance of the layer's output",
    "attention/entropy": "normalised entropy of attention (1: uniform)",
    "balance/c": "imbalance |c|, maximum over the layer's neurons",
    "balance/delta": "residual |δ|, maximum over the layer's neurons",
}
FIRST_SCHEMES = ("xav", "bal-o")  # listed first within a group
LOGARITHMIC_GROUPS = ("gradient", "update", "balance", "representation")  # values span orders of magnitude


def page_data(experiments: Sequence[Experiment], store: Store) -> dict[str, Any]:
    """Collect the data that the page's script reads, ready for JSON.

    Args:
        experiments: experiments on the page.
        store: store with their runs.

    Returns:
        ``measures`` and ``quantities`` (name → title), ``runs`` with their curves, ``experiments`` with indices into
        ``runs``, and ``layers``, the recordings by layer and epoch.
    """
    keys = dict.fromkeys(spec.key for experiment in experiments for spec in experiment.specs)
    plans = store.recording_plans()  # recorded runs of any length are shown, even if the tables have others
    results = {key: result for key, result in store.results([*keys, *plans], curves=True).items() if result.curves}
    index = {key: number for number, key in enumerate(results)}
    points = int(min(MAX_POINTS, max(MIN_POINTS, MAX_VALUES / (len(MEASURES) * max(len(results), 1)))))
    entries = [
        {"name": experiment.name, "runs": [index[spec.key] for spec in experiment.specs if spec.key in index]}
        for experiment in experiments
    ]
    entries.append({"name": "other recorded runs", "runs": [index[key] for key in index if key not in keys]})
    load_frame = frame_loader(store)
    recorded = [results[key].spec for key in plans if key in index]
    return {
        "measures": _measure_titles(result.spec for result in results.values()),
        "quantities": {
            name: {"title": title, "log": name.split("/")[0] in LOGARITHMIC_GROUPS}
            for name, title in QUANTITIES.items()
        },
        "runs": [_run_entry(result, points) for result in results.values()],
        "experiments": [entry for entry in entries if entry["runs"]],
        "layers": [
            {"run": index[spec.key], "quantities": _heat_maps(frame)}
            for spec in order_for_comparison(recorded)
            if (frame := load_frame(spec.key)) is not None
        ],
    }


def _measure_titles(specs: Iterable[RunSpec]) -> dict[str, str]:
    """Titles of the curves, with the metrics of the data sets that occur."""
    metrics = " or ".join(METRIC_TITLES[metric] for metric in dict.fromkeys(spec.metric for spec in specs))
    return {name: title.replace("accuracy", metrics or "accuracy") for name, title in MEASURES.items()}


def order_for_comparison(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Order runs so that those that differ only in their scheme are adjacent.

    Args:
        specs: runs to order.

    Returns:
        The runs; groups with the most schemes first, then the deepest networks.

    Example:
        >>> settings = ((5, "bal-o"), (10, "xav"), (5, "xav"))
        >>> specs = [RunSpec(dataset="cora", lr=0.1, seed=0, depth=depth, init=init) for depth, init in settings]
        >>> [(spec.depth, spec.init) for spec in order_for_comparison(specs)]
        [(5, 'xav'), (5, 'bal-o'), (10, 'xav')]
    """
    groups = [
        [spec for same_scheme in group.values() for spec in same_scheme]
        for group in group_by_scheme(specs, split_seeds=True)
    ]
    groups.sort(key=lambda group: (-len(group), -group[0].depth))
    return [spec for group in groups for spec in sorted(group, key=_scheme_rank)]


def _scheme_rank(spec: RunSpec) -> int:
    return FIRST_SCHEMES.index(spec.init) if spec.init in FIRST_SCHEMES else len(FIRST_SCHEMES)


def _run_entry(result: Result, points: int) -> dict[str, Any]:
    spec = result.spec
    settings = {name: value for name, value in spec.to_dict().items() if value != DEFAULTS.get(name)}
    samples = _sample(result.epochs, points, power=2.0)  # dense at the beginning, where curves change most
    scale = {"loss": 1.0, "val_accuracy": 100.0, "test_accuracy": 100.0}
    return {
        "key": result.key,
        "label": f"{spec.label}, {spec.kind} width {spec.width}, {spec.optimizer} {spec.lr:g}, {spec.epochs} epochs",
        "settings": ", ".join(f"{name} {value}" for name, value in settings.items()),
        "outcome": result.outcome,
        "best": result.best_epoch,
        "accuracy": None if result.test_accuracy is None else round(100 * result.test_accuracy, 2),
        "epochs": [int(epoch) + 1 for epoch in samples],
        "curves": {
            name: round_values(scale[name] * curve[samples])
            for name, curve in result.curves.items()
            if name in MEASURES and len(curve) == result.epochs
        },
    }


def _heat_maps(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Build one grid per quantity, layers × epochs; values of neurons are reduced to the largest magnitude."""
    rows = frame[frame["quantity"].isin(list(QUANTITIES)) & frame["layer"].notna()]
    tables: Mapping[Any, pd.DataFrame] = dict(list(rows.groupby("quantity")))
    grids: dict[str, dict[str, Any]] = {}
    for name in QUANTITIES:
        if name not in tables:
            continue
        table = tables[name].assign(value=tables[name]["value"].abs())
        grid = table.pivot_table(index="layer", columns="epoch", values="value", aggfunc="max")
        grid = grid.iloc[:, _sample(grid.shape[1], MAX_COLUMNS)]
        grids[name] = {
            "layers": [int(layer) for layer in grid.index],
            "epochs": [int(epoch) for epoch in grid.columns],
            "values": [round_values(row, 3) for row in grid.to_numpy(dtype=float)],
        }
    return grids


def _sample(count: int, most: int, power: float = 1.0) -> np.ndarray:
    """Choose at most ``most`` of ``count`` indices, including the first and the last.

    Args:
        count: number of indices.
        most: maximum number to choose.
        power: 1 spaces them evenly; larger values place them more densely at the beginning.

    Returns:
        The indices, increasing.

    Example:
        >>> _sample(9, 3).tolist(), _sample(9, 3, power=2.0).tolist(), _sample(3, 4, power=2.0).tolist()
        ([0, 4, 8], [0, 2, 8], [0, 1, 2])
    """
    if count <= most:
        return np.arange(count)
    return np.unique(((count - 1) * np.linspace(0, 1, most) ** power).round().astype(int))


def round_values(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """Round to significant digits; non-finite values, which JSON lacks, become None."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]
