"""Plots of training dynamics from recordings: conservation laws and relative gradients.

Every ``draw_…`` function takes frames as returned by :meth:`Recorder.frame`, keyed by what differs between the runs
(usually the scheme), and the common settings for the caption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.report.frames import layer_table, neuron_bands, run_series
from equipoise.report.plots.style import (
    DASHED,
    DOTTED,
    HATCHES,
    INK,
    MARKERS,
    ZERO_LINE,
    add_caption,
    add_layer_colourbar,
    finish_axes,
    layer_colour,
    line_style,
)

SchemeFrames = Mapping[str, pd.DataFrame]
Settings = Mapping[str, Any]
SMALLEST_SHOWN = 1e-14  # a logarithmic axis cannot show zero
MOVED_THRESHOLDS = {"moved": "0.05", "moved_half": "0.5"}


def accuracy_text(frame: pd.DataFrame) -> str:
    """Test accuracy of the run as text; empty if it was not recorded."""
    values = run_series(frame, "best/test_accuracy")
    return f"test accuracy {100 * values.iloc[-1]:.1f} %" if len(values) else ""


def draw_conservation(residuals: SchemeFrames, imbalances: SchemeFrames, settings: Settings) -> Figure:
    """Draw δ of every hidden layer by optimizer, then c by scheme; bands span all neurons of a layer.

    Args:
        residuals: frames with ``balance/delta``, by optimizer; one panel each.
        imbalances: frames with ``balance/c``, by scheme; one panel each.
        settings: settings listed in the caption.

    Returns:
        The figure.
    """
    panels = [("balance/delta", rf"$\delta$ with {name}", frame) for name, frame in residuals.items()]
    panels += [("balance/c", f"$c$ with {name}", frame) for name, frame in imbalances.items()]
    figure = Figure(figsize=(3.6 * len(panels), 3.9), layout="constrained")
    for ax, (quantity, title, frame) in zip(_row_of_axes(figure, len(panels)), panels, strict=True):
        bands = neuron_bands(frame, quantity)
        layers = [int(layer) for layer in bands["layer"].unique()]
        for layer in layers:
            rows = bands[bands["layer"] == layer]
            colour = layer_colour(layers, layer)
            ax.fill_between(rows["epoch"], rows["low"], rows["high"], color=colour, alpha=0.2, linewidth=0)
            ax.plot(rows["epoch"], rows["median"], color=colour, linewidth=1.2, label=f"layer {layer}")
        ax.axhline(0.0, color=INK, linewidth=0.8, linestyle=ZERO_LINE)
        finish_axes(ax, title, "epoch")
        if len(layers) <= 3:
            ax.legend(frameon=False, fontsize=8)
        else:
            add_layer_colourbar(figure, [ax], layers)
    add_caption(figure, "line: median over the neurons of a hidden layer; band: minimum to maximum", settings)
    return figure


def draw_dynamics(runs: SchemeFrames, settings: Settings, moved: str = "moved") -> Figure:
    """Draw the share of weights that changed by layer, then relative gradients and training loss by epoch.

    Args:
        runs: frames by scheme.
        settings: settings listed in the caption.
        moved: ``"moved"`` counts weights that changed by more than 5 %, ``"moved_half"`` by more than 50 %.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(4.6 * (1 + len(runs)), 4.0), layout="constrained")
    shares, *panels = _row_of_axes(figure, 1 + len(runs))
    width, highest = 0.8 / len(runs), 0.0
    for number, (scheme, frame) in enumerate(runs.items()):
        values = layer_table(frame, f"best/{moved}").iloc[-1]
        x = values.index.to_numpy(dtype=float) + (number - (len(runs) - 1) / 2) * width
        colour = line_style(scheme)["color"]
        shares.bar(x, values, width, label=scheme, color=colour, hatch=HATCHES[number % len(HATCHES)])
        highest = max(highest, float(values.max()))
    finish_axes(shares, f"share of weights with relative change > {MOVED_THRESHOLDS[moved]}", "layer")
    shares.set_ylim(0, min(1.0, 1.4 * highest) or 1.0)  # room for the legend above the bars
    shares.legend(frameon=False)
    top = max(_finite(layer_table(frame, "gradient/features")).max().max() for frame in runs.values())
    for ax, (scheme, frame) in zip(panels, runs.items(), strict=True):
        layers = _plot_gradients(ax, layer_table(frame, "gradient/features"))
        ax.set_ylim(top=2 * top)
        finish_axes(ax, _run_title(scheme, frame), "epoch")
        ax.set_ylabel(r"$\|\nabla W\|/\|W\|$")
        _plot_loss(ax, run_series(frame, "train/loss"))
    _share_limits(panels)
    add_layer_colourbar(figure, panels, layers)
    text = "relative gradients of feature weights, one line per layer; dashed: training loss (right axis)"
    add_caption(figure, text, settings)
    return figure


def draw_relative_gradients(runs: SchemeFrames, settings: Settings, layers: Sequence[int] = ()) -> Figure:
    """Draw relative gradients of some layers, one panel per scheme; features on the left axis, attention on the right.

    Args:
        runs: frames by scheme.
        settings: settings listed in the caption.
        layers: layers to draw; by default the first, the middle and the last.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(4.1 * len(runs), 4.1), layout="constrained")
    for ax, (scheme, frame) in zip(_row_of_axes(figure, len(runs)), runs.items(), strict=True):
        features = _finite(layer_table(frame, "gradient/features"))
        attention = _finite(layer_table(frame, "gradient/attention"))
        last = int(features.columns.max())
        right = ax.twinx()
        for number, layer in enumerate(layers or sorted({1, (last + 1) // 2, last})):
            colour = layer_colour([0, 1, 2, 3], number)
            ax.plot(features[layer], color=colour, linewidth=1.6, label=f"W, layer {layer}")
            right.plot(
                attention[layer],
                color=colour,
                linewidth=1.0,
                linestyle=DOTTED,
                marker=MARKERS[number % len(MARKERS)],
                markersize=4,
                markevery=max(1, len(attention) // 20),
                label=f"a, layer {layer}",
            )
        finish_axes(ax, _run_title(scheme, frame), "epoch")
        ax.set_ylabel(r"features, $\|\nabla W\|/\|W\|$")
        right.set_ylabel(r"attention, $\|\nabla a\|/\|a\|$")
        right.spines["top"].set_visible(False)
        for side in (ax, right):
            side.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        lines = [*ax.get_lines(), *right.get_lines()]
    labels = [str(line.get_label()) for line in lines]
    figure.legend(lines, labels, frameon=False, fontsize=8, ncols=len(lines), loc="outside upper center")
    text = "relative gradient norms; solid: feature weights (left axis), dotted: attention (right axis)"
    add_caption(figure, text, settings)
    return figure


def draw_adam_gradients(depths: Mapping[int, SchemeFrames], settings: Settings) -> Figure:
    """Draw relative gradients of all layers: two rows per depth (features, attention), one column per scheme.

    Args:
        depths: depth → frames by scheme.
        settings: settings listed in the caption.

    Returns:
        The figure.
    """
    columns = max(len(runs) for runs in depths.values())
    figure = Figure(figsize=(3.7 * columns, 2.9 * 2 * len(depths)), layout="constrained")
    axes = figure.subplots(2 * len(depths), columns, squeeze=False)
    for number, (depth, runs) in enumerate(depths.items()):
        for column, (scheme, frame) in enumerate(runs.items()):
            for row, (parameter, symbol) in enumerate((("features", "W"), ("attention", "a"))):
                ax = axes[2 * number + row, column]
                layers = _plot_gradients(ax, layer_table(frame, f"gradient/{parameter}"))
                finish_axes(ax, f"L = {depth}, {_run_title(scheme, frame)}" if row == 0 else "", "epoch")
                if column == 0:
                    ax.set_ylabel(rf"$\|\nabla {symbol}\|/\|{symbol}\|$")
        for row in range(2):
            _share_limits(axes[2 * number + row])
    add_layer_colourbar(figure, list(axes[-1]), layers)
    add_caption(figure, "relative gradient norms, one line per layer", settings)
    return figure


def _row_of_axes(figure: Figure, columns: int) -> list[Axes]:
    return list(figure.subplots(1, columns, squeeze=False)[0])


def _run_title(scheme: str, frame: pd.DataFrame) -> str:
    return "\n".join(filter(None, (scheme, accuracy_text(frame))))


def _finite(table: pd.DataFrame) -> pd.DataFrame:
    """Replace infinities by NaN: the relative gradient of attention is undefined while attention is zero."""
    return table.replace([np.inf, -np.inf], np.nan)


def _plot_gradients(ax: Axes, table: pd.DataFrame) -> list[int]:
    """Plot one line per layer on a logarithmic axis and return the layers."""
    layers = [int(layer) for layer in table.columns]
    for layer in layers:
        values = _finite(table)[layer].clip(lower=SMALLEST_SHOWN)
        ax.plot(values, color=layer_colour(layers, layer), linewidth=1.2)
    ax.set_yscale("log")
    return layers


def _plot_loss(ax: Axes, loss: pd.Series[float]) -> None:
    """Plot the training loss on a second y axis."""
    if not len(loss):
        return
    right = ax.twinx()
    right.plot(loss, color=INK, linestyle=DASHED, linewidth=1.4)
    right.set_ylabel("training loss")
    right.set_ylim(0, 1.1 * float(loss.max()))
    right.spines["top"].set_visible(False)


def _share_limits(axes: Sequence[Axes]) -> None:
    limits = [ax.get_ylim() for ax in axes if ax.lines]
    for ax in axes:
        ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
