"""What recordings show, in words: a sentence for each group of runs that differ in nothing but their start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from equipoise.experiments.experiment import Experiment
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.watch import RECORDED
from equipoise.report.frames import Frames, by_layer

EARLY = 25  # the epoch at which gradients are compared, as in the paper's first sample
UNBALANCED = "xav"  # what other starts are compared with

Runs = Mapping[str, pd.DataFrame]  # start → what was recorded


def findings(experiment: Experiment, frames: Frames) -> list[str]:
    """Sentences on what the figure of an experiment draws, from the runs of it that were recorded."""
    if not set(experiment.draws) & set(RECORDED):  # its runs may be recorded all the same, for other figures
        return []
    recorded = {spec: frame for spec in experiment.specs if (frame := frames(spec.key)) is not None}
    said: list[str] = []
    if {"delta", "c"} & set(experiment.draws):
        said += [sentence for spec, frame in recorded.items() for sentence in _conservation(spec, frame)]
    for settings, runs in _by_start(recorded).items():
        if "relative-gradient" in experiment.draws:
            said += _gradients(settings, runs)
        if "change" in experiment.draws:
            said += _changes(settings, runs)
    return said


def _by_start(recorded: Mapping[RunSpec, pd.DataFrame]) -> dict[str, dict[str, pd.DataFrame]]:
    """Settings in words → runs by start; the first seed of each."""
    groups: dict[RunSpec, dict[str, pd.DataFrame]] = {}
    for spec, frame in recorded.items():
        groups.setdefault(replace(spec, init=UNBALANCED, seed=0), {}).setdefault(spec.init, frame)
    return {f"{spec.dataset}, L = {spec.depth}, {spec.optimizer} {spec.lr:g}": runs for spec, runs in groups.items()}


def _gradients(settings: str, runs: Runs) -> Iterator[str]:
    """First-layer relative gradients early on, as multiples of those from Xavier, and where the gap is widest."""
    first = {start: by_layer(frame, "gradient/features")[1] for start, frame in runs.items()}
    epochs = sorted(set.intersection(*(set(series.index) for series in first.values())))
    early = [epoch for epoch in epochs if epoch <= EARLY]
    if not early:
        return
    at = early[-1]
    told = [f"{start} {series[at]:.1e}" for start, series in first.items()]
    for number, (start, series) in enumerate(first.items()):
        if start != UNBALANCED and UNBALANCED in first:
            ratios = (series / first[UNBALANCED]).reindex(epochs).replace([np.inf, -np.inf], np.nan).dropna()
            if len(ratios):
                now, most = _times(ratios.get(at, np.nan)), _times(ratios.max())
                told[number] += f" ({now}, at most {most} at epoch {ratios.idxmax()})"
    yield f"{settings}: ‖∇W‖/‖W‖ of the first layer at epoch {at}: {', '.join(told)}."


def _changes(settings: str, runs: Runs) -> Iterator[str]:
    """Which weights are in the best model what they were at the start, and which moved."""
    told = []
    for start, frame in runs.items():
        same, moved = (by_layer(frame, f"best/{what}").iloc[-1] for what in ("features_unchanged", "moved"))
        told.append(f"{start} {_percent(same)} unchanged, {_percent(moved)} changed by more than 5 %")
    yield f"{settings}: feature weights of a layer in the best model: {'; '.join(told)}."


def _conservation(spec: RunSpec, frame: pd.DataFrame) -> Iterator[str]:
    """How far δ is from zero, and how far c moved, with what of it was not predicted."""
    values = {name: rows["value"] for name, rows in frame.groupby("quantity")}
    if not {"balance/delta", "balance/terms"} <= set(values):
        return
    label = f"{spec.label}, {spec.optimizer} {spec.lr:g}"
    residual, terms = values["balance/delta"].abs().max(), values["balance/terms"].max()
    told = f"{label}: largest |δ| {residual:.1e}, of terms up to {terms:.1e}"
    if "balance/predicted_drift" in values:
        key = ["epoch", "layer", "neuron"]
        drift, predicted, c = (
            frame[frame["quantity"] == f"balance/{name}"].set_index(key)["value"]
            for name in ("drift", "predicted_drift", "c")
        )
        table = c.unstack("epoch")
        moved = table.sub(table.iloc[:, 0], axis=0).abs().to_numpy().max()
        told += f"; c moved by {moved:.1e} at most, in one step by {drift.abs().max():.1e}"
        told += f", of it not predicted {(drift - predicted).abs().max():.1e}"
    yield told + "."


def _times(ratio: float) -> str:
    return f"{ratio:.0f} ×" if ratio >= 10 else f"{ratio:.2g} ×"


def _percent(shares: Sequence[float] | pd.Series[float]) -> str:
    """The range over layers: 0 … 2 %.

    Example:
        >>> _percent([0.0, 0.021]), _percent([0.5, 0.504])
        ('0 … 2 %', '50 %')
    """
    low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return f"{low} %" if low == high else f"{low} … {high} %"
