"""Results of a check: one per size and scheme, as a table, a figure and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from equipoise.depth.prediction import Prediction, predict
from equipoise.depth.remedies import describe_remedy, remedy_cost
from equipoise.report.plots.depth import draw_depth
from equipoise.report.plots.style import save_figure

MIN_STEPS = 4  # to see whether the loss speeds up or slows down
EPOCH_BUDGET = 5000  # of the paper's protocol: the network has to train within it
OUTLOOKS = {
    "trains": "it can train",
    "slow": "not within {budget} steps at this pace{estimate}",
    "plateau": "it will not train: the loss stops above 90 % of {reference}",
    "rises": "it will not train at this learning rate: the loss rises",
    "diverges": "it will not train at this learning rate: the loss becomes NaN or infinite",
}


@dataclass
class DepthResult:
    """Result of one size and scheme.

    Attributes:
        size: Number of layers, or the width in a width check.
        scheme: Initialisation scheme or other remedy.
        lr: Learning rate.
        note: Why the run ended early or did not start; empty otherwise.
        diverged: Whether the loss became NaN or infinite.
        losses: Training loss at each step.
        seconds: Duration of the run.
        imbalance: Initial mean ``|c| / (incoming + outgoing)`` of the worst layer; None if no law is known.
        frame: Recorded quantities, with the columns epoch, quantity, layer, value.
        entropy: Entropy of the class frequencies of the training set; None if the targets are not classes.
        budget: Number of steps that the prediction refers to.
        metric: Metric of the training set after the last step; None without a metric, or if the run diverged.
        flow: Pairs of time, in steps, and loss along the gradient flow that continues the steps.
    """

    size: int
    scheme: str
    lr: float
    note: str = ""
    diverged: bool = False
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    imbalance: float | None = None
    frame: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    entropy: float | None = None
    budget: int = EPOCH_BUDGET
    metric: float | None = None
    flow: list[tuple[float, float]] = field(default_factory=list, repr=False)

    @property
    def gradient(self) -> float | None:
        """Median ‖∇W¹‖/‖W¹‖ of the first layer over the recorded steps."""
        values = self._values("gradient/features", 1)
        return float(values.median()) if len(values) else None

    @property
    def distance(self) -> float | None:
        """Mean average distance between neighbours' representations in the last hidden layer, at the last record."""
        last = 1 if self.frame.empty else max(int(self.frame["layer"].max()) - 1, 1)
        values = self._values("representation/mad", last)
        return float(values.iloc[-1]) if len(values) else None

    @property
    def prediction(self) -> Prediction | None:
        """What the run predicts about full training; None if it took fewer than 4 steps."""
        if len(self.losses) < MIN_STEPS and not self.diverged:
            return None
        losses = [*self.losses, float("nan")] if self.diverged else self.losses
        return predict(losses, self.flow, self.entropy, self.budget)

    @property
    def trains(self) -> bool | None:
        """Whether the network is predicted to train within the budget; None if it took fewer than 4 steps."""
        return None if self.prediction is None else self.prediction.outlook == "trains"

    def to_dict(self, axis: str = "depth") -> dict[str, Any]:
        """Plain data for JSON and tables, with the size under the name of what varies."""
        return {
            axis: self.size,
            "scheme": self.scheme,
            "lr": self.lr,
            "steps": len(self.losses),
            "gradient": self.gradient,
            "imbalance": self.imbalance,
            "distance": self.distance,
            "loss_start": self.losses[0] if self.losses else None,
            "loss_end": self.losses[-1] if self.losses else None,
            "metric": self.metric,
            "seconds": round(self.seconds, 2),
            "entropy": self.entropy,
            "outlook": None if self.prediction is None else self.prediction.outlook,
            "predicted_steps": None if self.prediction is None else self.prediction.steps,
            "trains": self.trains,
            "note": self.note,
        }

    def _values(self, quantity: str, layer: int) -> pd.Series[float]:
        if self.frame.empty:
            return pd.Series(dtype=float)
        rows = self.frame[(self.frame["quantity"] == quantity) & (self.frame["layer"] == layer)]
        values: pd.Series[float] = rows["value"]
        return values


@dataclass(frozen=True)
class DepthCheck:
    """Result of :func:`depth_check`; prints as a table followed by a verdict.

    Attributes:
        results: One :class:`DepthResult` per depth and scheme.
        title: Title of the table and the figure.
        axis: What varies: ``"depth"`` or ``"width"``.

    Example:
        >>> from equipoise import Stack, depth_check, load_dataset
        >>> data = load_dataset("synthetic-citation")
        >>> def build(depth):
        ...     return Stack("gatv2", [data.num_features, *[16] * (depth - 1), data.classes])
        >>> check = depth_check(build, data, depths=(2, 3), schemes=("bal-o",), steps=2, title="GATv2, width 16")
        >>> print(check)
        GATv2, width 16
        <BLANKLINE>
        depth  scheme  gradient  imbalance ...
        >>> check.summary().shape[0], check.results[1].size
        (2, 3)
    """

    results: tuple[DepthResult, ...]
    title: str = ""
    axis: str = "depth"

    def summary(self) -> pd.DataFrame:
        """Return a table with one row per depth and scheme."""
        return pd.DataFrame([result.to_dict(self.axis) for result in self.results])

    def frame(self) -> pd.DataFrame:
        """Return all recorded values, with the columns depth (or width), scheme, epoch, quantity, layer, value."""
        frames = [r.frame.assign(**{self.axis: r.size}).assign(scheme=r.scheme) for r in self.results if len(r.frame)]
        columns = [self.axis, "scheme", "epoch", "quantity", "layer", "value"]
        return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)

    def figure(self, path: str | Path | None = None) -> Figure:
        """Draw gradient, imbalance, representations and loss over depth or width.

        Args:
            path: File to write (``.png``, ``.svg`` or ``.pdf``); None writes nothing.

        Returns:
            The figure.
        """
        figure = draw_depth(self.summary(), self.title, self.axis)
        if path is not None:
            save_figure(figure, path)
        return figure

    def verdict(self) -> str:
        """State for each scheme at which sizes the model trains, name the cheapest that does, and list the notes."""
        schemes = list(dict.fromkeys(result.scheme for result in self.results))
        lines = [line for scheme in schemes for line in self._scheme_verdict(scheme)]
        if cheapest := self._cheapest(schemes):
            lines.append(cheapest)
        notes = [f"{result.scheme}, {self._size(result)}: {result.note}" for result in self.results if result.note]
        return "\n".join([*lines, *dict.fromkeys(notes)])

    def _scheme_verdict(self, scheme: str) -> Iterator[str]:
        results = [result for result in self.results if result.scheme == scheme and result.prediction is not None]
        for outlook, sentence in OUTLOOKS.items():
            sizes = [result for result in results if result.prediction and result.prediction.outlook == outlook]
            if not sizes:
                continue
            listed = ", ".join(str(result.size) for result in sizes)
            steps = max((result.prediction.steps or 0 for result in sizes if result.prediction), default=0)
            estimate = f" (about {steps:.0e} steps)" if steps else " (no estimate: too few steps, or too noisy a loss)"
            entropies = [result.entropy for result in sizes if result.entropy is not None]
            reference = f"{entropies[0]:.3f}, the entropy of the classes" if entropies else "its first value"
            filled = sentence.format(budget=results[0].budget, estimate=estimate, reference=reference)
            yield f"{describe_remedy(scheme)}, {self.axis} {listed}: {filled}."

    def _cheapest(self, schemes: Sequence[str]) -> str:
        """Name the cheapest scheme that trains at the largest size, if the model as built does not."""
        largest = max((result.size for result in self.results), default=0)
        trains = {r.scheme for r in self.results if r.size == largest and r.trains}
        if not trains or schemes[0] in trains or len(schemes) < 2:
            return ""
        best = min(trains, key=remedy_cost)
        return f"The cheapest that trains at {self.axis} {largest}: {best}."

    def _size(self, result: DepthResult) -> str:
        return f"{result.size} layers" if self.axis == "depth" else f"{self.axis} {result.size}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        results = [result.to_dict(self.axis) for result in self.results]
        return {"title": self.title, "results": results, "verdict": self.verdict()}

    def __str__(self) -> str:
        measured = any(result.metric is not None for result in self.results)
        headers = (
            *(self.axis, "scheme", "gradient", "imbalance", "distance", "loss"),
            *(("metric",) if measured else ()),
            *("steps", "outlook"),
        )
        rows = [
            (
                str(result.size),
                result.scheme,
                _format(result.gradient),
                _format(result.imbalance),
                _format(result.distance),
                f"{result.losses[0]:.3f} → {result.losses[-1]:.3f}" if result.losses else "–",
                *((_format(result.metric, ".3f"),) if measured else ()),
                str(len(result.losses)),
                result.prediction.outlook if result.prediction else "–",
            )
            for result in self.results
        ]
        widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        table = [
            "  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True)) for row in (headers, *rows)
        ]
        legend = (
            "gradient: ‖∇W‖/‖W‖ of the first layer; imbalance: |c| over a neuron's squared weights, worst layer; "
            "distance: between neighbours in the last hidden layer"
        )
        return "\n".join([*([self.title, ""] if self.title else []), *table, "", legend, "", self.verdict()])


def _format(value: float | None, spec: str = ".1e") -> str:
    return "–" if value is None else f"{value:{spec}}"
