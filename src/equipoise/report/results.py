"""The paper's figures of accuracy against depth: ``cora-widths``, ``adam``, ``inits``, ``omega-gat``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.errors import EquipoiseError
from equipoise.report.looks import TITLES, caption, finish, look

MEASURES = {"accuracy": "test accuracy (%)", "epochs": "epochs to the best model"}
SPREAD = 0.12  # between the first and the last scheme at one depth, on the logarithmic axis: intervals stay apart


def draw_results(
    summary: pd.DataFrame,
    settings: Mapping[str, Any],
    panel: str | None = None,
    measures: tuple[str, ...] = ("accuracy", "epochs"),
) -> Figure:
    """Mean and 95 % confidence interval against depth, a line a scheme.

    Args:
        summary: ``depth``, ``scheme``, ``accuracy`` and ``accuracy_ci`` in percent, ``epochs`` and ``epochs_ci``,
            one row for each depth, scheme and panel.
        settings: for the caption.
        panel: the column that tells panels apart: the width (``cora-widths``), the data set (``adam``, ``inits``);
            there is a row of panels for every measure.
        measures: ``"accuracy"``, ``"epochs"`` or both.
    """
    needed = ["depth", "scheme", *([panel] if panel else []), *measures, *(f"{name}_ci" for name in measures)]
    if missing := [name for name in needed if name not in summary.columns]:
        raise EquipoiseError(f"the summary has no {', '.join(missing)}", where=f"columns: {', '.join(summary.columns)}")
    groups = [(str(name), rows) for name, rows in summary.groupby(panel, sort=False)] if panel else [("", summary)]
    shape = (len(measures), len(groups))
    figure = Figure(figsize=(max(3.5 * len(groups), 7.5), 3.5 * len(measures)), layout="constrained")
    axes = figure.subplots(*shape, squeeze=False, sharey="row")
    for row, measure in enumerate(measures):
        for ax, (name, rows) in zip(axes[row], groups, strict=True):
            _lines(ax, rows, measure)
            finish(ax, f"{panel} {name}" if panel and row == 0 else "", "layers L")
        axes[row, 0].set_ylabel(MEASURES[measure])
        axes[row, 0].set_ylim(bottom=0)
        if measure == "accuracy" and axes[row, 0].get_ylim()[1] > 100:  # an interval of two runs can be as wide
            axes[row, 0].set_ylim(top=100)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    titles = [TITLES.get(label, label) for label in labels]
    figure.legend(handles, titles, frameon=False, loc="outside upper center", ncols=4)
    caption(figure, "mean and 95 % confidence interval", settings)
    return figure


def _lines(ax: Axes, rows: pd.DataFrame, measure: str) -> None:
    depths = sorted(rows["depth"].unique())
    schemes = list(dict.fromkeys(rows["scheme"]))
    for number, scheme in enumerate(schemes):
        mine = rows[rows["scheme"] == scheme].sort_values("depth")
        aside = np.exp(SPREAD * (number / max(len(schemes) - 1, 1) - 0.5))
        ax.errorbar(
            mine["depth"] * aside, mine[measure], mine[f"{measure}_ci"], capsize=2, elinewidth=0.9, **look(scheme)
        )
    ax.set_xscale("log")
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.minorticks_off()
