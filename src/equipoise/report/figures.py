"""Pictures: numbers are gathered first, then drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.errors import EquipoiseError
from equipoise.laws.law import Law

INCOMING, OUTGOING, INK = "#c0392b", "#1f5f99", "#333333"
MOST_LABELS = 12


@dataclass(frozen=True)
class Imbalance:
    """c of every neuron, law by law, ready to be drawn."""

    title: str
    labels: tuple[str, ...]
    values: tuple[np.ndarray, ...]


def gather_imbalance(laws: Sequence[Law], title: str) -> Imbalance:
    """c of every neuron as numbers; a law is labelled by the weights that come in."""
    values = tuple(law.imbalance().detach().double().cpu().numpy() for law in laws)
    return Imbalance(title, tuple(law.incoming[0].name for law in laws), values)


def draw_imbalance(panels: Sequence[Imbalance]) -> Figure:
    """One dot a neuron, one column a law, one panel for each of ``panels``, all on the same scale.

    Above zero the incoming weights are heavier, below zero the outgoing ones; a balanced network is the line at zero.
    """
    most = max((len(panel.values) for panel in panels), default=1)
    width = max(4.2, 0.55 * most + 2.4) * len(panels)
    figure = Figure(figsize=(min(width, 18.0), 4.4), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        _strip(ax, panel)
    axes[0].set_ylabel("imbalance $c_i$ = incoming − outgoing squared norm")
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the format that the file's ending names."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise EquipoiseError(
            f"the picture cannot be written: {error}", where=str(path), remedy="name a .png, .svg or .pdf you may write"
        ) from error
    return path


def _strip(ax: Axes, panel: Imbalance) -> None:
    ax.axhline(0.0, color=INK, linewidth=1.0, zorder=1)
    for place, values in enumerate(panel.values, start=1):
        spread = np.linspace(-0.32, 0.32, len(values)) if len(values) > 1 else np.zeros(1)
        heavier_in = values > 0
        ax.scatter(place + spread[heavier_in], values[heavier_in], s=9, marker="^", color=INCOMING, linewidths=0)
        ax.scatter(place + spread[~heavier_in], values[~heavier_in], s=9, marker="v", color=OUTGOING, linewidths=0)
        ax.hlines(np.median(values), place - 0.38, place + 0.38, color=INK, linewidth=2.0, zorder=3)
    ax.set_title(panel.title, fontsize=11)
    ax.set_xlabel("law, from input to output (dot: neuron, bar: median)")
    count = len(panel.values)
    ax.set_xlim(0.4, count + 0.6)
    step = max(1, -(-count // MOST_LABELS))
    places = range(1, count + 1, step)
    ax.set_xticks(list(places), [panel.labels[place - 1] for place in places], rotation=30, ha="right", fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
