"""Plots of how far weights moved between initialisation and the best model of each run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from equipoise.report.frames import layer_table
from equipoise.report.plots.dynamics import SchemeFrames, Settings
from equipoise.report.plots.style import (
    BLACK,
    DOTTED,
    HATCHES,
    INK,
    MEAN_MARKER,
    WHITE,
    add_caption,
    finish_axes,
    line_style,
)

# Suffix of the recorded quantity → key of the statistics that ``Axes.bxp`` takes.
BOX_KEYS = {"low": "whislo", "q1": "q1", "median": "med", "q3": "q3", "high": "whishi", "mean": "mean"}
CHANGE_LABELS = {"features": "|(w* − w₀)/w*|", "attention": "|a* − a₀|"}

BoxStats = dict[int, dict[str, Any]]


def draw_zero_change(depths: Mapping[int, SchemeFrames], settings: Settings) -> Figure:
    """Draw the share of weights that training left exactly unchanged, by layer, with one panel per depth.

    Args:
        depths: depth → frames by scheme.
        settings: settings listed in the caption.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(4.6 * len(depths), 4.2), layout="constrained")
    for ax, (depth, runs) in zip(figure.subplots(1, len(depths), squeeze=False)[0], depths.items(), strict=True):
        for scheme, frame in runs.items():
            features = layer_table(frame, "best/features_unchanged").iloc[-1]
            attention = layer_table(frame, "best/attention_unchanged").iloc[-1]
            hollow = {"markerfacecolor": WHITE, "linestyle": DOTTED, "linewidth": 1.2}
            ax.plot(features, **line_style(scheme, linestyle="solid", label=f"W, {scheme}"))
            ax.plot(attention, **line_style(scheme, **hollow, label=f"a, {scheme}"))
        finish_axes(ax, f"L = {depth}", "layer")
        ax.set_ylim(-0.03, 1.03)
        ax.set_ylabel("share unchanged")
    figure.legend(*ax.get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside right center")
    add_caption(figure, "filled, solid: feature weights W; hollow, dotted: attention a", settings)
    return figure


def draw_parameter_change(depths: Mapping[int, SchemeFrames], settings: Settings) -> Figure:
    """Draw box plots of the change of weights, without those that did not change; two rows per depth (W and a).

    Args:
        depths: depth → frames by scheme.
        settings: settings listed in the caption.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(13.0, 3.3 * 2 * len(depths)), layout="constrained")
    axes = figure.subplots(2 * len(depths), 1, squeeze=False)[:, 0]
    for number, (depth, runs) in enumerate(depths.items()):
        for row, (parameter, label) in enumerate(CHANGE_LABELS.items()):
            ax = axes[2 * number + row]
            handles = _draw_boxes(ax, {scheme: box_stats(frame, parameter) for scheme, frame in runs.items()})
            finish_axes(ax, f"L = {depth}: {parameter}", "layer")
            ax.set_ylabel(label)
            ax.set_yscale("log")
            ax.set_xlim(0.4, depth + 0.6)
            ax.set_xticks(range(1, depth + 1), [str(layer) for layer in range(1, depth + 1)])
    figure.legend(handles=handles, frameon=False, ncols=len(handles), loc="outside upper center")
    text = "boxes: quartiles; whiskers: within 1.5 interquartile ranges; dot: mean; unchanged weights excluded"
    add_caption(figure, text, settings)
    return figure


def box_stats(frame: pd.DataFrame, parameter: str) -> BoxStats:
    """Collect the statistics that ``Axes.bxp`` takes, by layer; layers in which nothing changed are absent."""
    stats: BoxStats = {}
    for suffix, key in BOX_KEYS.items():
        rows = frame[frame["quantity"] == f"best/{parameter}_{suffix}"]
        for layer, value in zip(rows["layer"], rows["value"], strict=True):
            stats.setdefault(int(layer), {"fliers": []})[key] = float(value)
    return stats


def _draw_boxes(ax: Axes, schemes: Mapping[str, BoxStats]) -> list[Patch]:
    """Draw the boxes of all layers, with schemes next to each other, and return the legend handles."""
    width = 0.8 / len(schemes)
    handles = []
    for number, (scheme, stats) in enumerate(schemes.items()):
        face = {"facecolor": line_style(scheme)["color"], "hatch": HATCHES[number % len(HATCHES)], "edgecolor": INK}
        handles.append(Patch(label=scheme, **face))
        if stats:
            ax.bxp(
                list(stats.values()),
                positions=[layer + (number - (len(schemes) - 1) / 2) * width for layer in stats],
                widths=0.85 * width,
                showmeans=True,
                showfliers=False,
                patch_artist=True,
                manage_ticks=False,
                boxprops={**face, "linewidth": 0.6},
                medianprops={"color": WHITE, "linewidth": 1.2},
                meanprops={
                    **{"marker": MEAN_MARKER, "markersize": 3.5},
                    **{"markerfacecolor": BLACK, "markeredgecolor": WHITE},
                },
                whiskerprops={"linewidth": 0.7},
                capprops={"linewidth": 0.7},
            )
    return handles
