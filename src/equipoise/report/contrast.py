"""The picture and the table of several starts trained side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Column, Table

from equipoise.train.history import History

# Colour, line and marker: told apart in grey, too.
STYLES = {
    "xav": ("#9a9a9a", (0, (1, 1.2)), "o"),
    "xav-z": ("#c0792b", (0, (4, 2)), "s"),
    "bal-x": ("#2b7bba", (0, (7, 1.5, 1.5, 1.5)), "^"),
    "bal-o": ("#0b2e59", "solid", "D"),
}
PLAIN = ("#333333", "solid", "o")


@dataclass(frozen=True)
class Run:
    """One start and what came of it.

    Attributes:
        scheme: the initialisation.
        history: curves and result.
        moved: share of significant weights that changed by more than 5 % up to the best epoch.
        gradients: ‖∇W‖/‖W‖ of every layer at epoch 25 (or the last, if there are fewer).
    """

    scheme: str
    history: History
    moved: float
    gradients: list[float]


def contrast_table(runs: Sequence[Run]) -> Table:
    """Test accuracy, epochs to the best model, share of weights that moved, relative gradient at the first layer."""
    heads = ("test accuracy", "epochs to best", "weights that moved", "first-layer gradient")
    table = Table("start", *(Column(head, justify="right") for head in heads))
    best = max(run.history.best_test_accuracy for run in runs)
    for run in runs:
        accuracy = f"{100 * run.history.best_test_accuracy:.1f} %" + (
            "" if run.history.outcome != "diverged" else " (diverged)"
        )
        gradient = f"{run.gradients[0]:.1e}" if run.gradients else "none"
        style = "bold" if run.history.best_test_accuracy == best else ""
        table.add_row(
            run.scheme, accuracy, str(run.history.best_epoch), f"{100 * run.moved:.0f} %", gradient, style=style
        )
    return table


def draw_contrast(runs: Sequence[Run], title: str, gradient_epoch: int) -> Figure:
    """Training curves on the left, relative gradient layer by layer on the right."""
    figure = Figure(figsize=(12.5, 4.4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    accuracy, loss, gradients = figure.subplots(1, 3)
    for run in runs:
        colour, dash, marker = STYLES.get(run.scheme, PLAIN)
        epochs = np.arange(1, len(run.history.test_accuracy) + 1)
        look = {"color": colour, "linestyle": dash, "label": run.scheme, "linewidth": 1.7}
        accuracy.plot(epochs, 100 * np.asarray(run.history.test_accuracy), **look)
        loss.plot(epochs, run.history.loss, **look)
        layers = np.arange(1, len(run.gradients) + 1)
        gradients.plot(layers, np.maximum(run.gradients, 1e-30), marker=marker, markersize=4, **look)
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
