"""The picture and the table of several starts trained side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Column, Table

# Colour, line and marker: told apart in grey, too.
STYLES = {
    "xav": ("#9a9a9a", (0, (1, 1.2)), "o"),
    "xav-z": ("#c0792b", (0, (4, 2)), "s"),
    "bal-x": ("#2b7bba", (0, (7, 1.5, 1.5, 1.5)), "^"),
    "bal-o": ("#0b2e59", "solid", "D"),
}
PLAIN = ("#333333", "solid", "o")


@dataclass(frozen=True)
class Line:
    """One start, as numbers."""

    scheme: str
    test_accuracy: Sequence[float]
    loss: Sequence[float]
    gradients: Sequence[float]
    best_epoch: int
    best_test_accuracy: float
    moved: float
    outcome: str


def contrast_table(lines: Sequence[Line]) -> Table:
    """Test accuracy, epochs to the best model, share of weights that moved, relative gradient at the first layer."""
    heads = ("test accuracy", "epochs to best", "weights that moved", "first-layer gradient")
    table = Table("start", *(Column(head, justify="right") for head in heads))
    best = max(line.best_test_accuracy for line in lines)
    for line in lines:
        accuracy = f"{100 * line.best_test_accuracy:.1f} %" + ("" if line.outcome != "diverged" else " (diverged)")
        gradient = f"{line.gradients[0]:.1e}" if line.gradients else "none"
        style = "bold" if line.best_test_accuracy == best else ""
        table.add_row(line.scheme, accuracy, str(line.best_epoch), f"{100 * line.moved:.0f} %", gradient, style=style)
    return table


def draw_contrast(lines: Sequence[Line], title: str, gradient_epoch: int) -> Figure:
    """Training curves on the left, relative gradient layer by layer on the right."""
    figure = Figure(figsize=(12.5, 4.4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    accuracy, loss, gradients = figure.subplots(1, 3)
    for line in lines:
        colour, dash, marker = STYLES.get(line.scheme, PLAIN)
        epochs = np.arange(1, len(line.test_accuracy) + 1)
        look = {"color": colour, "linestyle": dash, "label": line.scheme, "linewidth": 1.7}
        accuracy.plot(epochs, 100 * np.asarray(line.test_accuracy), **look)
        loss.plot(epochs, line.loss, **look)
        layers = np.arange(1, len(line.gradients) + 1)
        gradients.plot(layers, np.maximum(line.gradients, 1e-30), marker=marker, markersize=4, **look)
    _finish(accuracy, "test accuracy (%)", "epoch")
    _finish(loss, "training loss", "epoch")
    _finish(gradients, rf"relative gradient $\|\nabla W\|/\|W\|$ at epoch {gradient_epoch}", "layer")
    accuracy.set_ylim(0, 100)
    loss.set_yscale("log")
    gradients.set_yscale("log")
    accuracy.legend(frameon=False)
    return figure


def _finish(ax: Axes, what: str, over: str) -> None:
    ax.set_title(what, fontsize=10)
    ax.set_xlabel(over)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
