"""Plot of the imbalance c of every neuron, grouped by conservation law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.laws.law import Law
from equipoise.report.plots.style import INCOMING, INCOMING_MARKER, INK, OUTGOING, OUTGOING_MARKER

MAX_LABELS = 12


@dataclass(frozen=True)
class ImbalancePanel:
    """Numbers of one panel: the imbalance of every neuron, one array and one label per law."""

    title: str
    labels: tuple[str, ...]
    values: tuple[np.ndarray, ...]


def gather_imbalance(laws: Sequence[Law], title: str) -> ImbalancePanel:
    """Collect c of every neuron as float64; each law is labelled with its first incoming parameter."""
    values = tuple(law.imbalance().detach().double().cpu().numpy() for law in laws)
    return ImbalancePanel(title, tuple(law.incoming[0].name for law in laws), values)


def draw_imbalance(panels: Sequence[ImbalancePanel]) -> Figure:
    """Draw one panel per entry of ``panels``, with one column per law and one marker per neuron, on a shared scale.

    Above zero, the incoming weights have the larger squared norm; below zero, the outgoing ones. All neurons of a
    balanced network lie on the zero line.

    Args:
        panels: results of :func:`gather_imbalance`.

    Returns:
        The figure.
    """
    most_laws = max((len(panel.values) for panel in panels), default=1)
    width = max(4.2, 0.55 * most_laws + 2.4) * len(panels)
    figure = Figure(figsize=(min(width, 18.0), 4.4), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        _draw_panel(ax, panel)
    axes[0].set_ylabel("imbalance $c_i$ = incoming − outgoing squared norm")
    figure.supxlabel("laws from input to output; marker: neuron, bar: median", fontsize=10)
    return figure


def _draw_panel(ax: Axes, panel: ImbalancePanel) -> None:
    ax.axhline(0.0, color=INK, linewidth=1.0, zorder=1)
    for x, values in enumerate(panel.values, start=1):
        offsets = np.linspace(-0.32, 0.32, len(values)) if len(values) > 1 else np.zeros(1)
        positive = values > 0
        for mask, colour, marker in ((positive, INCOMING, INCOMING_MARKER), (~positive, OUTGOING, OUTGOING_MARKER)):
            ax.scatter(x + offsets[mask], values[mask], s=9, marker=marker, color=colour, linewidths=0)
        ax.hlines(np.median(values), x - 0.38, x + 0.38, color=INK, linewidth=2.0, zorder=3)
    ax.set_title(panel.title, fontsize=11)
    count = len(panel.values)
    ax.set_xlim(0.4, count + 0.6)
    ticks = range(1, count + 1, max(1, -(-count // MAX_LABELS)))
    ax.set_xticks(list(ticks), [panel.labels[x - 1] for x in ticks], rotation=30, ha="right", fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
