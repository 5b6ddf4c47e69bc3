"""The paper's figures on training dynamics, from what recorders wrote down: numbers are gathered first, then drawn.

Every ``draw_…`` takes frames as :meth:`Recorder.frame` gives them, by the name of what differs between the runs, and
the settings that they have in common, for the caption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from equipoise.report.frames import bands, by_layer, scalar
from equipoise.report.looks import INK, TITLES, caption, finish, look

Runs = Mapping[str, pd.DataFrame]
Settings = Mapping[str, Any]
FLOOR = 1e-14  # what a logarithmic axis shows of zero
RAMP, LIGHTEST = colormaps["viridis"], 0.88  # as light in grey as in colour, but for what is too light to see


def accuracy_of(frame: pd.DataFrame) -> str:
    """The run's test accuracy in words; nothing if it was not recorded."""
    values = scalar(frame, "best/test_accuracy")
    return f"test accuracy {100 * values.iloc[-1]:.1f} %" if len(values) else ""


def draw_conservation(residuals: Runs, imbalances: Runs, settings: Settings) -> Figure:
    """``conservation``: δ of every hidden layer by optimizer, then c by scheme; bands hold all neurons of a layer."""
    figure = Figure(figsize=(3.6 * (len(residuals) + len(imbalances)), 3.9), layout="constrained")
    axes = figure.subplots(1, len(residuals) + len(imbalances))
    panels = [("balance/delta", rf"$\delta$ with {name}", frame) for name, frame in residuals.items()]
    panels += [("balance/c", f"$c$ with {TITLES.get(name, name)}", frame) for name, frame in imbalances.items()]
    for ax, (quantity, title, frame) in zip(np.atleast_1d(axes), panels, strict=True):
        gathered = bands(frame, quantity)
        layers = [int(layer) for layer in gathered["layer"].unique()]
        for layer in layers:
            rows = gathered[gathered["layer"] == layer]
            colour = _tone(layers, layer)
            ax.fill_between(rows["epoch"], rows["low"], rows["high"], color=colour, alpha=0.2, linewidth=0)
            ax.plot(rows["epoch"], rows["median"], color=colour, linewidth=1.2, label=f"layer {layer}")
        ax.axhline(0.0, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        finish(ax, title, "epoch")
        if len(layers) <= 3:
            ax.legend(frameon=False, fontsize=8)
        else:
            _layer_bar(figure, [ax], layers)
    caption(figure, "line: median neuron of a hidden layer; band: least to largest", settings)
    return figure


def draw_dynamics(runs: Runs, settings: Settings, moved: str = "moved") -> Figure:
    """``dynamics-5``, ``dynamics-10``: which weights changed, and relative gradients with the training curve.

    Args:
        runs: by scheme.
        settings: for the caption.
        moved: ``"moved"`` counts weights that changed by more than 5 %, ``"moved_half"`` by more than 50 %.
    """
    figure = Figure(figsize=(4.6 * (1 + len(runs)), 4.0), layout="constrained")
    share, *rest = figure.subplots(1, 1 + len(runs))
    width, most = 0.8 / len(runs), 0.0
    for number, (scheme, frame) in enumerate(runs.items()):
        values = by_layer(frame, f"best/{moved}").iloc[-1]
        places = values.index.to_numpy(dtype=float) + (number - (len(runs) - 1) / 2) * width
        style = look(scheme)
        share.bar(places, values, width, label=scheme, color=style["color"], hatch=HATCHES[number % len(HATCHES)])
        most = max(most, float(values.max()))
    threshold = {"moved": "0.05", "moved_half": "0.5"}[moved]
    finish(share, f"share of weights with relative change > {threshold}", "layer")
    share.set_ylim(0, min(1.0, 1.4 * most) or 1.0)  # room for the legend above the bars
    share.legend(frameon=False)
    top = max(_finite(by_layer(frame, "gradient/features")).max().max() for frame in runs.values())
    for ax, (scheme, frame) in zip(rest, runs.items(), strict=True):
        layers = _gradients(ax, by_layer(frame, "gradient/features"))
        ax.set_ylim(top=2 * top)
        finish(ax, "\n".join(filter(None, (TITLES.get(scheme, scheme), accuracy_of(frame)))), "epoch")
        ax.set_ylabel(r"$\|\nabla W\|/\|W\|$")
        _training_curve(ax, scalar(frame, "train/loss"))
    _same_limits(rest)
    _layer_bar(figure, rest, layers)
    caption(figure, "relative gradients of feature weights, layer by layer; dashed: training loss (right)", settings)
    return figure


def draw_relative_gradients(runs: Runs, settings: Settings, layers: Sequence[int] = ()) -> Figure:
    """``relative-gradients``: first, middle and last layer; features on the left axis, attention on the right."""
    figure = Figure(figsize=(4.1 * len(runs), 4.1), layout="constrained")
    for ax, (scheme, frame) in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs.items(), strict=True):
        features = _finite(by_layer(frame, "gradient/features"))
        attention = _finite(by_layer(frame, "gradient/attention"))
        last = int(features.columns.max())
        right = ax.twinx()
        for number, layer in enumerate(layers or sorted({1, (last + 1) // 2, last})):
            colour = _tone([0, 1, 2, 3], number)
            ax.plot(features[layer], color=colour, linewidth=1.6, label=f"W, layer {layer}")
            right.plot(
                attention[layer],
                color=colour,
                linewidth=1.0,
                linestyle=(0, (2, 1.5)),
                marker=MARKERS[number],
                markersize=4,
                markevery=max(1, len(attention) // 20),
                label=f"a, layer {layer}",
            )
        finish(ax, "\n".join(filter(None, (TITLES.get(scheme, scheme), accuracy_of(frame)))), "epoch")
        ax.set_ylabel(r"features, $\|\nabla W\|/\|W\|$")
        right.set_ylabel(r"attention, $\|\nabla a\|/\|a\|$")
        right.spines["top"].set_visible(False)
        for side in (ax, right):
            side.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        lines = [*ax.get_lines(), *right.get_lines()]
    labels = [str(line.get_label()) for line in lines]
    figure.legend(lines, labels, frameon=False, fontsize=8, ncols=len(lines), loc="outside upper center")
    caption(figure, "relative gradient norms: features solid (left axis), attention dotted (right axis)", settings)
    return figure


def draw_adam_gradients(depths: Mapping[int, Runs], settings: Settings) -> Figure:
    """``adam-gradients``: for every depth a row of features and a row of attention, a column a scheme."""
    columns = max(len(runs) for runs in depths.values())
    figure = Figure(figsize=(3.7 * columns, 2.9 * 2 * len(depths)), layout="constrained")
    axes = figure.subplots(2 * len(depths), columns, squeeze=False)
    for number, (depth, runs) in enumerate(depths.items()):
        for column, (scheme, frame) in enumerate(runs.items()):
            for row, (part, symbol) in enumerate((("features", "W"), ("attention", "a"))):
                ax = axes[2 * number + row, column]
                layers = _gradients(ax, by_layer(frame, f"gradient/{part}"))
                title = f"L = {depth}, {TITLES.get(scheme, scheme)}\n{accuracy_of(frame)}" if row == 0 else ""
                finish(ax, title, "epoch")
                if column == 0:
                    ax.set_ylabel(rf"$\|\nabla {symbol}\|/\|{symbol}\|$")
        for row in range(2):
            _same_limits(axes[2 * number + row])
    _layer_bar(figure, list(axes[-1]), layers)
    caption(figure, "relative gradient norms, layer by layer", settings)
    return figure


HATCHES = ("", "///", "...", "xx")
MARKERS = ("o", "s", "^", "D")


def _finite(table: pd.DataFrame) -> pd.DataFrame:
    """Without what is infinite: attention that is still zero has no relative gradient."""
    return table.replace([np.inf, -np.inf], np.nan)


def _gradients(ax: Axes, table: pd.DataFrame) -> list[int]:
    """A line a layer; returns the layers."""
    layers = [int(layer) for layer in table.columns]
    for layer in layers:
        ax.plot(_finite(table)[layer].clip(lower=FLOOR), color=_tone(layers, layer), linewidth=1.2)
    ax.set_yscale("log")
    return layers


def _training_curve(ax: Axes, loss: pd.Series[float]) -> None:
    if not len(loss):
        return
    right = ax.twinx()
    right.plot(loss, color=INK, linestyle=(0, (5, 2)), linewidth=1.4)
    right.set_ylabel("training loss")
    right.set_ylim(0, 1.1 * float(loss.max()))
    right.spines["top"].set_visible(False)


def _same_limits(axes: Sequence[Axes]) -> None:
    drawn = [ax.get_ylim() for ax in axes if ax.lines]
    for ax in axes:
        ax.set_ylim(min(low for low, _ in drawn), max(high for _, high in drawn))


def _tone(layers: Sequence[int], layer: int) -> Any:
    """From dark at the first layer to light at the last."""
    first, last = min(layers), max(layers)
    return RAMP(LIGHTEST * (layer - first) / max(last - first, 1))


def _layer_bar(figure: Figure, axes: Sequence[Axes], layers: Sequence[int]) -> None:
    shades = ListedColormap(RAMP(np.linspace(0, LIGHTEST, 256)))
    mappable = ScalarMappable(Normalize(min(layers), max(layers)), shades)
    bar = figure.colorbar(mappable, ax=axes, location="bottom", fraction=0.04, pad=0.02, aspect=50)
    bar.set_ticks([min(layers), max(layers)], labels=["first layer", "last layer"], fontsize=7)
