"""Comparison of initialisation schemes trained with the same settings: a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from rich.table import Column, Table

from equipoise.report.plots.style import finish_axes, line_style
from equipoise.training.history import History

SMALLEST_SHOWN = 1e-30  # a logarithmic axis cannot show zero


@dataclass(frozen=True)
class SchemeRun:
    """One training run of the comparison.

    Attributes:
        scheme: initialisation scheme.
        history: training curves and result.
        share_moved: share of significant weights that changed by more than 5 % up to the best epoch.
        gradients: ‖∇W‖/‖W‖ of every layer at epoch 25, or at the last epoch of a shorter run.
    """

    scheme: str
    history: History
    share_moved: float
    gradients: list[float]


def scheme_table(runs: Sequence[SchemeRun]) -> Table:
    """Tabulate test accuracy, epochs to the best model, weights that moved, and the first layer's relative gradient."""
    headers = ("test accuracy", "epochs to best", "weights that moved", "first-layer gradient")
    table = Table("init", *(Column(header, justify="right") for header in headers))
    best = max(run.history.best_test_metric for run in runs)
    for run in runs:
        diverged = " (diverged)" if run.history.outcome == "diverged" else ""
        table.add_row(
            run.scheme,
            f"{100 * run.history.best_test_metric:.1f} %{diverged}",
            str(run.history.best_epoch),
            f"{100 * run.share_moved:.0f} %",
            f"{run.gradients[0]:.1e}" if run.gradients else "none",
            style="bold" if run.history.best_test_metric == best else "",
        )
    return table


def draw_schemes(runs: Sequence[SchemeRun], title: str, gradient_epoch: int) -> Figure:
    """Draw test accuracy and training loss by epoch, and the relative gradient by layer, with one line per scheme.

    Args:
        runs: one run per scheme.
        title: title of the figure.
        gradient_epoch: epoch at which the gradients were recorded.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(12.5, 4.4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    accuracy, loss, gradients = figure.subplots(1, 3)
    for run in runs:
        curve = line_style(run.scheme, marker="", linewidth=1.7)
        epochs = np.arange(1, len(run.history.test_metric) + 1)
        accuracy.plot(epochs, 100 * np.asarray(run.history.test_metric), **curve)
        loss.plot(epochs, run.history.loss, **curve)
        layers = np.arange(1, len(run.gradients) + 1)
        gradients.plot(layers, np.maximum(run.gradients, SMALLEST_SHOWN), **line_style(run.scheme, linewidth=1.7))
    finish_axes(accuracy, "test accuracy (%)", "epoch")
    finish_axes(loss, "training loss", "epoch")
    finish_axes(gradients, rf"relative gradient $\|\nabla W\|/\|W\|$ at epoch {gradient_epoch}", "layer")
    accuracy.set_ylim(0, 100)
    loss.set_yscale("log")
    gradients.set_yscale("log")
    accuracy.legend(frameon=False)
    return figure
