"""Figure of a depth or width check: gradient, imbalance, distance and loss against the size."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from equipoise.report.plots.style import WHITE, finish_axes, line_style, set_depth_axis

SMALLEST_SHOWN = 1e-16  # a logarithmic axis cannot show zero
PANELS = {
    "gradient": r"first layer, $\|\nabla W\|/\|W\|$",
    "imbalance": "initial imbalance, worst layer",
    "distance": "neighbour distance, last hidden layer",
    "loss_end": "training loss after the last step",
}


def draw_depth(summary: pd.DataFrame, title: str = "", axis: str = "depth") -> Figure:
    """Draw the four panels of a depth check, with one line per scheme.

    Args:
        summary: one row per size and scheme, with the columns ``scheme``, ``note``, that of the axis and those of
            ``PANELS``. Runs with a note ended early; their markers are hollow.
        title: title of the figure.
        axis: what varies: ``"depth"`` or ``"width"``.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(13.5, 4.2), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11)
    axes = dict(zip(PANELS, figure.subplots(1, len(PANELS)), strict=True))
    for scheme, rows in summary.groupby("scheme", sort=False):
        ended_early = rows["note"] != ""
        style = line_style(str(scheme))
        for name, ax in axes.items():
            values = rows[name].astype(float)
            clipped = values.where(values > SMALLEST_SHOWN, SMALLEST_SHOWN).where(values.notna())
            ax.plot(rows[axis], clipped, **style)
            hollow = (rows[axis][ended_early], clipped[ended_early])
            ax.plot(*hollow, style["marker"], color=WHITE, markersize=2, zorder=3)
    label = "layers" if axis == "depth" else axis
    for name, ax in axes.items():
        finish_axes(ax, PANELS[name], label)
        set_depth_axis(ax, sorted(summary[axis].unique()))
        if name in ("gradient", "distance"):
            ax.set_yscale("log")
    if (summary["note"] != "").any():
        axes["loss_end"].set_xlabel(f"{label} (hollow: the run ended early)")
    axes["imbalance"].set_ylim(-0.05, 1.05)
    axes["gradient"].legend(frameon=False)
    return figure
