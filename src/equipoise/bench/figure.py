"""The picture of a bench: time against edges, depth and width, memory against edges."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from equipoise.bench.report import OURS, PYG, Report, Sweep
from equipoise.bench.scaling import LINEAR
from equipoise.bench.table import lines, scaled
from equipoise.errors import EquipoiseError

PANELS = (("edges", "ms"), ("depth", "ms"), ("width", "ms"), ("edges", "bytes"))
# Colour, line and marker: told apart in grey, too.
STYLES = {OURS: ("#0b2e59", "solid", "o"), PYG: ("#c0792b", (0, (4, 2)), "s")}
QUANTITIES = {"ms": "milliseconds an epoch", "bytes": "MiB of memory at the peak"}


def draw_scaling(report: Report) -> Figure:
    """Four panels with both contestants; where cost grows in proportion, with the line of least squares."""
    sweeps = [report.sweep(over, unit) for over, unit in PANELS]
    if not any(sweeps):
        raise EquipoiseError("there is nothing to draw: no scaling was measured", remedy="add --case scaling")
    figure = Figure(figsize=(10.5, 7.8), layout="constrained")
    figure.suptitle("GATv2, width 64, one thread; fits are straight lines, curved by the logarithmic axes", fontsize=11)
    for ax, sweep in zip(figure.subplots(2, 2).flat, sweeps, strict=True):
        if sweep is None:
            ax.set_axis_off()
        else:
            _panel(ax, sweep)
    return figure


def _panel(ax: Axes, sweep: Sweep) -> None:
    fits = lines(sweep) if sweep.over in LINEAR else {}
    for who, values in {OURS: sweep.ours, PYG: sweep.pyg}.items():
        colour, dash, marker = STYLES[who]
        label = f"{who} (fit: R² = {fits[who].r2:.3f})" if fits else who
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5.5}
        x = np.linspace(sweep.x[0], sweep.x[-1], 200)
        if fits:
            ax.plot(x, [fits[who](float(at)) for at in x], color=colour, linestyle=dash, linewidth=1.4)
            ax.plot(sweep.x, scaled(values, sweep.unit), linestyle="none", label=label, **look)
        else:
            ax.plot(sweep.x, scaled(values, sweep.unit), linestyle=dash, linewidth=1.4, label=label, **look)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_title(f"{QUANTITIES[sweep.unit]} against {sweep.over}", fontsize=10)
    ax.set_xlabel("layers" if sweep.over == "depth" else sweep.over)
    ax.set_xticks(sweep.x, [f"{value // 1000}k" if value >= 1000 else str(value) for value in sweep.x])
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.minorticks_off()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.legend(frameon=False, fontsize=9)
