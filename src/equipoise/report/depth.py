"""What a depth check found: numbers, a verdict in words, a figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.report.figures import save_figure
from equipoise.report.looks import finish, look
from equipoise.train.quantities import MOVED

DEFAULT = "default"  # the scheme that leaves a model as it was built
PATIENCE = 5000  # epochs of the paper's protocol, within which weights have to move
FLOOR = 1e-16  # what a logarithmic axis shows of zero


@dataclass
class Cell:
    """One depth from one start.

    Attributes:
        note: why there is less to see than there might be; empty if all went well.
        frame: epoch, quantity, layer, value of the layers on the way.
        imbalance: mean |c| / (incoming + outgoing) of the worst layer at the start; None if no law is known.
    """

    depth: int
    scheme: str
    lr: float
    note: str = ""
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    imbalance: float | None = None
    frame: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)

    @property
    def gradient(self) -> float | None:
        """‖∇W¹‖/‖W¹‖ of the first layer, median over what was recorded."""
        values = self._of("gradient/features", 1)
        return float(values.median()) if len(values) else None

    @property
    def distance(self) -> float | None:
        """Mean average distance between neighbours' representations in the last hidden layer, at the end."""
        values = self._of("representation/mad", max(self.depth - 1, 1))
        return float(values.iloc[-1]) if len(values) else None

    @property
    def pace(self) -> float | None:
        """How far the first layer's weights would move in 5000 steps as large as these, relative to their size."""
        return None if self.gradient is None else self.gradient * self.lr * PATIENCE

    @property
    def trains(self) -> bool | None:
        """Whether that is more than 5 %; None if it was not seen."""
        return None if self.pace is None else self.pace >= MOVED

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "depth": self.depth,
            "scheme": self.scheme,
            "lr": self.lr,
            "steps": len(self.losses),
            "gradient": self.gradient,
            "pace": self.pace,
            "imbalance": self.imbalance,
            "distance": self.distance,
            "loss_start": self.losses[0] if self.losses else None,
            "loss_end": self.losses[-1] if self.losses else None,
            "seconds": round(self.seconds, 2),
            "trains": self.trains,
            "note": self.note,
        }

    def _of(self, quantity: str, layer: int) -> pd.Series[float]:
        if self.frame.empty:
            return pd.Series(dtype=float)
        rows = self.frame[(self.frame["quantity"] == quantity) & (self.frame["layer"] == layer)]
        values: pd.Series[float] = rows["value"]
        return values


@dataclass(frozen=True)
class DepthCheck:
    """What :func:`depth_check` found; prints as a table and a verdict in words."""

    cells: tuple[Cell, ...]
    title: str = ""

    def summary(self) -> pd.DataFrame:
        """One row for every depth and scheme."""
        return pd.DataFrame([cell.to_dict() for cell in self.cells])

    def frame(self) -> pd.DataFrame:
        """Everything that was recorded: depth, scheme, epoch, quantity, layer, value."""
        parts = [cell.frame.assign(depth=cell.depth, scheme=cell.scheme) for cell in self.cells if len(cell.frame)]
        columns = ["depth", "scheme", "epoch", "quantity", "layer", "value"]
        return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)

    def figure(self, path: str | Path | None = None) -> Figure:
        """Gradient, imbalance, representations and loss against depth; written to ``path`` if there is one."""
        figure = draw_depth(self.summary(), self.title)
        if path is not None:
            save_figure(figure, path)
        return figure

    def verdict(self) -> str:
        """Whether it will train, start by start, and what stood in the way of looking."""
        schemes = list(dict.fromkeys(cell.scheme for cell in self.cells))
        lines = [line for scheme in schemes for line in self._judged(scheme)]
        notes = [f"{cell.scheme}, {cell.depth} layers: {cell.note}" for cell in self.cells if cell.note]
        return "\n".join([*lines, *dict.fromkeys(notes)])

    def _judged(self, scheme: str) -> Iterator[str]:
        seen = [cell for cell in self.cells if cell.scheme == scheme and cell.gradient is not None]
        if not seen:
            return
        name = "As built" if scheme == DEFAULT else f"With {scheme}"
        bad = next((number for number in range(len(seen)) if not any(cell.trains for cell in seen[number:])), None)
        if bad is None:
            least = min(cell.gradient or 0.0 for cell in seen)
            slow = [str(cell.depth) for cell in seen if not cell.trains]
            but = f", though not at {', '.join(slow)}" if slow else ""
            yield (
                f"{name}, the first layer's relative gradient is at least {least:.0e} "
                f"up to {seen[-1].depth} layers: it can train{but}."
            )
            return
        most = max(cell.gradient or 0.0 for cell in seen[bad:])
        moves = max(cell.pace or 0.0 for cell in seen[bad:])
        yield (
            f"{name}, from {seen[bad].depth} layers on the first layer's relative gradient is at most {most:.0e}: in "
            f"{PATIENCE} steps like these its weights move by {100 * moves:.1g} % or less. It will not train."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return {"title": self.title, "cells": [cell.to_dict() for cell in self.cells], "verdict": self.verdict()}

    def __str__(self) -> str:
        heads = ("depth", "start", "gradient", "imbalance", "distance", "loss", "steps")
        rows = [
            (
                str(cell.depth),
                cell.scheme,
                _short(cell.gradient),
                _short(cell.imbalance),
                _short(cell.distance),
                f"{cell.losses[0]:.3f} → {cell.losses[-1]:.3f}" if cell.losses else "–",
                str(len(cell.losses)),
            )
            for cell in self.cells
        ]
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        table = [
            "  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True)) for row in (heads, *rows)
        ]
        legend = (
            "gradient: ‖∇W‖/‖W‖ of the first layer; imbalance: |c| over all weights of a neuron, worst layer; "
            "distance: between neighbours in the last hidden layer"
        )
        return "\n".join([*([self.title, ""] if self.title else []), *table, "", legend, "", self.verdict()])


def draw_depth(summary: pd.DataFrame, title: str = "") -> Figure:
    """Gradient, imbalance, representations and loss against depth, a line a start."""
    figure = Figure(figsize=(13.5, 4.2), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11)
    panels = {
        "gradient": r"first layer, $\|\nabla W\|/\|W\|$",
        "imbalance": "imbalance at the start, worst layer",
        "distance": "neighbours' distance, last hidden layer",
        "loss_end": "training loss after these steps",
    }
    axes = dict(zip(panels, figure.subplots(1, len(panels)), strict=True))
    for scheme, rows in summary.groupby("scheme", sort=False):
        for name, ax in axes.items():
            values = rows[name].astype(float)
            shown = values.where(values > FLOOR, FLOOR).where(values.notna())
            style = look(str(scheme))
            ax.plot(rows["depth"], shown, **style)
            early = rows["note"] != ""
            ax.plot(rows["depth"][early], shown[early], style["marker"], color="white", markersize=2, zorder=3)
    for name, ax in axes.items():
        finish(ax, panels[name], "layers")
        _depth_axis(ax, sorted(summary["depth"].unique()))
        if name in ("gradient", "distance"):
            ax.set_yscale("log")
    if (summary["note"] != "").any():
        axes["loss_end"].set_xlabel("layers (hollow: the run ended early)")
    axes["imbalance"].set_ylim(-0.05, 1.05)
    axes["gradient"].legend(frameon=False)
    return figure


def _depth_axis(ax: Axes, depths: list[int]) -> None:
    ax.set_xscale("log")
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.minorticks_off()


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"
