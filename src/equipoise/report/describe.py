"""Describe recordings in sentences: one per group of runs that differ only in their initialisation scheme."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from equipoise.experiments.experiment import Experiment
from equipoise.experiments.recording_plan import RECORDED_QUANTITIES
from equipoise.experiments.spec import RunSpec
from equipoise.report.frames import FrameLoader, layer_table
from equipoise.report.summary import REFERENCE_SCHEME, group_by_scheme

GRADIENT_EPOCH = 25  # epoch at which gradients are compared: the paper's first sample

SchemeFrames = Mapping[str, pd.DataFrame]


def describe_recordings(experiment: Experiment, load_frame: FrameLoader) -> list[str]:
    """Describe what an experiment's figure draws, using the recordings of its runs.

    Args:
        experiment: experiment whose ``draws`` select the quantities.
        load_frame: loads the recording of a run by its key.

    Returns:
        Sentences; none if the experiment draws no recorded quantity, even if other experiments recorded its runs.
    """
    if not set(experiment.draws) & set(RECORDED_QUANTITIES):
        return []
    recordings = {spec: frame for spec in experiment.specs if (frame := load_frame(spec.key)) is not None}
    sentences: list[str] = []
    if {"delta", "c"} & set(experiment.draws):
        sentences += [text for spec, frame in recordings.items() for text in _describe_conservation(spec, frame)]
    for group in group_by_scheme(recordings):
        first_seeds = {scheme: specs[0] for scheme, specs in group.items()}
        frames = {scheme: recordings[spec] for scheme, spec in first_seeds.items()}
        spec = next(iter(first_seeds.values()))
        settings = f"{spec.dataset}, L = {spec.depth}, {spec.optimizer} {spec.lr:g}"
        if "relative-gradient" in experiment.draws:
            sentences += _describe_gradients(settings, frames)
        if "change" in experiment.draws:
            sentences += _describe_changes(settings, frames)
    return sentences


def _describe_gradients(settings: str, frames: SchemeFrames) -> Iterator[str]:
    """First-layer relative gradient at an early epoch, and its ratio to that of the reference scheme."""
    first_layer = {scheme: layer_table(frame, "gradient/features")[1] for scheme, frame in frames.items()}
    epochs = sorted(set.intersection(*(set(series.index) for series in first_layer.values())))
    early = [epoch for epoch in epochs if epoch <= GRADIENT_EPOCH]
    if not early:
        return
    epoch = early[-1]
    phrases = [f"{scheme} {series[epoch]:.1e}" for scheme, series in first_layer.items()]
    for number, (scheme, series) in enumerate(first_layer.items()):
        if scheme != REFERENCE_SCHEME and REFERENCE_SCHEME in first_layer:
            ratios = series / first_layer[REFERENCE_SCHEME]
            ratios = ratios.reindex(epochs).replace([np.inf, -np.inf], np.nan).dropna()
            if len(ratios):
                current, largest = _times(ratios.get(epoch, np.nan)), _times(ratios.max())
                phrases[number] += f" ({current}, at most {largest} at epoch {ratios.idxmax()})"
    yield f"{settings}: ‖∇W‖/‖W‖ of the first layer at epoch {epoch}: {', '.join(phrases)}."


def _describe_changes(settings: str, frames: SchemeFrames) -> Iterator[str]:
    """Share of weights that did not change, and that changed by more than 5 %, in the best model."""
    phrases = []
    for scheme, frame in frames.items():
        unchanged, moved = (layer_table(frame, f"best/{name}").iloc[-1] for name in ("features_unchanged", "moved"))
        phrases.append(f"{scheme} {_percent(unchanged)} unchanged, {_percent(moved)} changed by more than 5 %")
    yield f"{settings}: feature weights per layer in the best model: {'; '.join(phrases)}."


def _describe_conservation(spec: RunSpec, frame: pd.DataFrame) -> Iterator[str]:
    """Largest residual δ, and the drift of c with the part that the theory does not predict."""
    values = {name: rows["value"] for name, rows in frame.groupby("quantity")}
    if not {"balance/delta", "balance/terms"} <= set(values):
        return
    residual, terms = values["balance/delta"].abs().max(), values["balance/terms"].max()
    sentence = f"{spec.label}, {spec.optimizer} {spec.lr:g}: largest |δ| {residual:.1e}, with terms up to {terms:.1e}"
    if "balance/predicted_drift" in values:
        index = ["epoch", "layer", "neuron"]
        drift, predicted, c = (
            frame[frame["quantity"] == f"balance/{name}"].set_index(index)["value"]
            for name in ("drift", "predicted_drift", "c")
        )
        table = c.unstack("epoch")
        total = table.sub(table.iloc[:, 0], axis=0).abs().to_numpy().max()
        sentence += f"; c drifts by at most {total:.1e}, in one step by at most {drift.abs().max():.1e}"
        sentence += f", of which {(drift - predicted).abs().max():.1e} is not predicted"
    yield sentence + "."


def _times(ratio: float) -> str:
    return f"{ratio:.0f} ×" if ratio >= 10 else f"{ratio:.2g} ×"


def _percent(shares: Sequence[float] | pd.Series[float]) -> str:
    """Format the range over layers.

    Args:
        shares: one share in [0, 1] per layer.

    Returns:
        The range in percent.

    Example:
        >>> _percent([0.0, 0.021]), _percent([0.5, 0.504])
        ('0 … 2 %', '50 %')
    """
    low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return f"{low} %" if low == high else f"{low} … {high} %"
