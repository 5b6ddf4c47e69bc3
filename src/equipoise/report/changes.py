"""The paper's figures on which weights changed, in the best model of each run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from equipoise.report.dynamics import HATCHES, Runs, Settings
from equipoise.report.frames import by_layer
from equipoise.report.looks import INK, TITLES, caption, finish, look

BOX = {"low": "whislo", "q1": "q1", "median": "med", "q3": "q3", "high": "whishi", "mean": "mean"}


def draw_zero_change(depths: Mapping[int, Runs], settings: Settings) -> Figure:
    """``zero-change``: the share of weights that training left exactly as they were, a panel a depth."""
    figure = Figure(figsize=(4.6 * len(depths), 4.2), layout="constrained")
    for ax, (depth, runs) in zip(figure.subplots(1, len(depths), squeeze=False)[0], depths.items(), strict=True):
        for scheme, frame in runs.items():
            style = look(scheme)
            features = by_layer(frame, "best/features_unchanged").iloc[-1]
            attention = by_layer(frame, "best/attention_unchanged").iloc[-1]
            ax.plot(features, **{**style, "linestyle": "solid", "label": f"W, {scheme}"})
            hollow = {"markerfacecolor": "white", "linestyle": (0, (1.5, 1.5)), "linewidth": 1.2}
            ax.plot(attention, **{**style, **hollow, "label": f"a, {scheme}"})
        finish(ax, f"L = {depth}", "layer")
        ax.set_ylim(-0.03, 1.03)
        ax.set_ylabel("share unchanged")
    figure.legend(*ax.get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside right center")
    caption(figure, "filled, solid: feature weights W; hollow, dotted: attention a", settings)
    return figure


def draw_parameter_change(depths: Mapping[int, Runs], settings: Settings) -> Figure:
    """``parameter-change``: how far weights moved where they moved at all; a row of W and a row of a for each depth."""
    figure = Figure(figsize=(13.0, 3.3 * 2 * len(depths)), layout="constrained")
    axes = figure.subplots(2 * len(depths), 1, squeeze=False)[:, 0]
    for number, (depth, runs) in enumerate(depths.items()):
        for row, (part, what) in enumerate((("features", "|(w* − w₀)/w*|"), ("attention", "|a* − a₀|"))):
            ax = axes[2 * number + row]
            handles = _boxes(ax, {scheme: boxes(frame, part) for scheme, frame in runs.items()})
            finish(ax, f"L = {depth}: {part}", "layer")
            ax.set_ylabel(what)
            ax.set_yscale("log")
            ax.set_xlim(0.4, depth + 0.6)
            ax.set_xticks(range(1, depth + 1), [str(layer) for layer in range(1, depth + 1)])
    figure.legend(handles=handles, frameon=False, ncols=len(handles), loc="outside upper center")
    caption(
        figure, "boxes: quartiles; whiskers: within 1.5 boxes; black: mean; unchanged weights are left out", settings
    )
    return figure


def boxes(frame: pd.DataFrame, part: str) -> dict[int, dict[str, Any]]:
    """What ``Axes.bxp`` takes, layer by layer; a layer of which nothing moved has no box."""
    gathered: dict[int, dict[str, Any]] = {}
    for name, key in BOX.items():
        rows = frame[frame["quantity"] == f"best/{part}_{name}"]
        for layer, value in zip(rows["layer"], rows["value"], strict=True):
            gathered.setdefault(int(layer), {"fliers": []})[key] = float(value)
    return gathered


def _boxes(ax: Axes, schemes: Mapping[str, dict[int, dict[str, Any]]]) -> list[Patch]:
    """The boxes of every layer, scheme beside scheme; returns the legend's entries."""
    width = 0.8 / len(schemes)
    handles = []
    for number, (scheme, stats) in enumerate(schemes.items()):
        face = {"facecolor": look(scheme)["color"], "hatch": HATCHES[number % len(HATCHES)], "edgecolor": INK}
        handles.append(Patch(label=TITLES.get(scheme, scheme), **face))
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
                medianprops={"color": "white", "linewidth": 1.2},
                meanprops={"marker": "o", "markerfacecolor": "black", "markeredgecolor": "white", "markersize": 3.5},
                whiskerprops={"linewidth": 0.7},
                capprops={"linewidth": 0.7},
            )
    return handles
