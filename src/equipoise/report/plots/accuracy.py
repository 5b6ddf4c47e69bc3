"""Plot of accuracy and of epochs to the best model against depth."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.errors import EquipoiseError
from equipoise.report.plots.style import add_caption, finish_axes, line_style, set_depth_axis

MEASURES = {"accuracy": "test accuracy (%)", "epochs": "epochs to the best model"}
MARGIN = 0.03  # of the vertical axis, beyond its ends
DEPTH_MARGIN = 1.2  # factor beyond the ends of the depth axis
COLUMNS = 4  # of panels, if there is one measure
PAPER = "paper_accuracy"  # optional column of published numbers
CONSTANT = "constant"  # optional column of the score of a constant prediction
CONSTANT_LINE: Final[dict[str, Any]] = {"color": "black", "linewidth": 0.7, "zorder": 0}
SPREAD = 0.12  # log-scale offset from the first to the last scheme at one depth, so that intervals do not overlap


def draw_accuracy(
    summary: pd.DataFrame,
    settings: Mapping[str, Any],
    panel: str | None = None,
    measures: tuple[str, ...] = ("accuracy", "epochs"),
) -> Figure:
    """Draw mean and 95 % confidence interval against depth, with one line per scheme and one row per measure.

    Args:
        summary: one row per depth, scheme and panel, with the columns ``depth``, ``scheme``, ``accuracy`` and
            ``accuracy_ci`` in percent, ``epochs`` and ``epochs_ci``. Published accuracies, in the optional columns
            ``paper_accuracy`` and ``paper_accuracy_ci``, are drawn as open markers; the score of a constant prediction,
            in the optional column ``constant``, as a thin line in panels that have only one.
        settings: settings listed in the caption.
        panel: column with one panel per value, such as the width or the data set; None draws one panel.
        measures: ``"accuracy"``, ``"epochs"`` or both.

    Returns:
        The figure.

    Raises:
        EquipoiseError: if ``summary`` lacks a column.
    """
    required = ["depth", "scheme", *([panel] if panel else []), *measures, *(f"{name}_ci" for name in measures)]
    if missing := [name for name in required if name not in summary.columns]:
        raise EquipoiseError(f"the summary has no {', '.join(missing)}", where=f"columns: {', '.join(summary.columns)}")
    groups = [(str(name), rows) for name, rows in summary.groupby(panel, sort=False)] if panel else [("", summary)]
    depths = sorted(summary["depth"].unique())  # the same axis in all panels
    height = len(measures) if len(measures) > 1 else ceil(len(groups) / COLUMNS)
    columns = len(groups) if len(measures) > 1 else ceil(len(groups) / height)  # rows of equal length
    figure = Figure(figsize=(max(3.5 * columns, 7.5), 3.5 * height), layout="constrained")
    axes = figure.subplots(height, columns, squeeze=False, sharey="row" if len(measures) > 1 else True)
    for measure, row in zip(measures, axes if len(measures) > 1 else [axes.ravel()], strict=True):
        for ax, (name, rows) in zip(row, groups, strict=False):
            _draw_schemes(ax, rows, measure)
            set_depth_axis(ax, depths)
            ax.set_xlim(depths[0] / DEPTH_MARGIN, depths[-1] * DEPTH_MARGIN)
            title = name if panel in (None, "dataset") else f"{panel} {name}"
            finish_axes(ax, title if measure == measures[0] else "", "layers L")
        for ax in row[len(groups) :]:
            ax.set_visible(False)
        for ax in row[::columns]:
            ax.set_ylabel(MEASURES[measure])
        top = row[0].get_ylim()[1]
        if measure == "accuracy":  # the interval of two runs can exceed 100 %
            top = min(top, 100 * (1 + MARGIN))
        row[0].set_ylim(-MARGIN * top, top)  # markers at 0 and 100 % are not cut
    handles, schemes = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, schemes, frameon=False, loc="outside upper center", ncols=4)
    text = "mean and 95 % confidence interval" + ("; open markers: published" if PAPER in summary.columns else "")
    text += "; thin line: a constant prediction" if CONSTANT in summary.columns and "accuracy" in measures else ""
    add_caption(figure, text, settings)
    return figure


def _draw_schemes(ax: Axes, rows: pd.DataFrame, measure: str) -> None:
    schemes = list(dict.fromkeys(rows["scheme"]))
    if measure == "accuracy" and CONSTANT in rows.columns and rows[CONSTANT].nunique() == 1:
        ax.axhline(rows[CONSTANT].iloc[0], **CONSTANT_LINE)
    for number, scheme in enumerate(schemes):
        own = rows[rows["scheme"] == scheme].sort_values("depth")
        x = own["depth"] * np.exp(SPREAD * (number / max(len(schemes) - 1, 1) - 0.5))
        ax.errorbar(x, own[measure], own[f"{measure}_ci"], capsize=2, elinewidth=0.9, **line_style(scheme))
        if measure == "accuracy" and PAPER in own.columns:
            style = {"linestyle": "none", "markerfacecolor": "none", "markersize": 7, "label": None}
            published = own[PAPER], own[f"{PAPER}_ci"]
            ax.errorbar(x, *published, capsize=4, elinewidth=0.5, **line_style(scheme, **style))
