"""Scaling plots of a benchmark: time over edges, depth and width, memory over edges."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from equipoise.bench.report import EQUIPOISE, PYG, BenchReport, ScalingCurve
from equipoise.errors import EquipoiseError
from equipoise.report.plots.style import SCHEME_STYLES, finish_axes

PANELS = (("edges", "ms"), ("depth", "ms"), ("width", "ms"), ("edges", "bytes"))
STYLES = {EQUIPOISE: SCHEME_STYLES["bal-o"], PYG: SCHEME_STYLES["xav-z"]}  # dark and light: distinct in greyscale
QUANTITIES = {"ms": "milliseconds per epoch", "bytes": "peak memory in MiB"}


def draw_scaling(report: BenchReport) -> Figure:
    """Draw four panels with both implementations, and linear fits where the cost is linear.

    Args:
        report: A report with scaling curves; panels without one stay empty.

    Returns:
        The figure.

    Raises:
        EquipoiseError: If the report has no scaling curve.
    """
    curves = [report.find_scaling(variable, unit) for variable, unit in PANELS]
    if not any(curves):
        raise EquipoiseError("the report has no scaling measurements to draw", remedy="add --case scaling")
    figure = Figure(figsize=(10.5, 7.8), layout="constrained")
    figure.suptitle("GATv2, width 64, one thread; linear fits appear curved on logarithmic axes", fontsize=11)
    for ax, curve in zip(figure.subplots(2, 2).flat, curves, strict=True):
        if curve is None:
            ax.set_axis_off()
        else:
            _draw_panel(ax, curve)
    return figure


def _draw_panel(ax: Axes, curve: ScalingCurve) -> None:
    fits = curve.fits()
    for name, values in curve.scaled().items():
        colour, dash, marker = STYLES[name]
        label = f"{name} (fit: R² = {fits[name].r2:.3f})" if fits else name
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5.5}
        if fits:
            x = np.linspace(curve.x[0], curve.x[-1], 200)
            ax.plot(x, [fits[name](float(value)) for value in x], color=colour, linestyle=dash, linewidth=1.4)
            ax.plot(curve.x, values, linestyle="none", label=label, **style)
        else:
            ax.plot(curve.x, values, linestyle=dash, linewidth=1.4, label=label, **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    title = f"{QUANTITIES[curve.unit]} over {curve.variable}"
    finish_axes(ax, title, "layers" if curve.variable == "depth" else curve.variable)
    ax.set_xticks(curve.x, [f"{value // 1000}k" if value >= 1000 else str(value) for value in curve.x])
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=9)
