"""Depth check: how gradients, balance, representations and loss of a model change with its depth."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim import SGD
from torch_geometric.data import Data

from equipoise.errors import ChoiceError, EquipoiseError, ForwardError, ModelError, TrainingError
from equipoise.init.schemes import SCHEMES, initialize_
from equipoise.kernels.denormals import flush_denormals
from equipoise.laws.law import Law
from equipoise.laws.validation import check_module, describe_value, summarize_error
from equipoise.nn.fused_convs import fuse_
from equipoise.report.plots.depth import draw_depth
from equipoise.report.plots.style import save_figure
from equipoise.training.batched_laws import discover_on_small_graph
from equipoise.training.quantities import MOVED_THRESHOLD
from equipoise.training.recorder import Recorder

DEFAULT = "default"  # the scheme that keeps the model's own initialisation
EPOCH_BUDGET = 5000  # of the paper's protocol: the weights have to move within it
RECORDS = 10  # recorded steps per run

ModelBuilder = Callable[[int], nn.Module]


@dataclass
class DepthResult:
    """Result of one depth and scheme.

    Attributes:
        depth: Number of layers.
        scheme: Initialisation scheme.
        lr: Learning rate.
        note: Why the run ended early or did not start; empty otherwise.
        losses: Training loss at each step.
        seconds: Duration of the run.
        imbalance: Initial mean ``|c| / (incoming + outgoing)`` of the worst layer; None if no law is known.
        frame: Recorded quantities, with the columns epoch, quantity, layer, value.
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
        """Median ‖∇W¹‖/‖W¹‖ of the first layer over the recorded steps."""
        values = self._values("gradient/features", 1)
        return float(values.median()) if len(values) else None

    @property
    def distance(self) -> float | None:
        """Mean average distance between neighbours' representations in the last hidden layer, at the last record."""
        values = self._values("representation/mad", max(self.depth - 1, 1))
        return float(values.iloc[-1]) if len(values) else None

    @property
    def relative_change(self) -> float | None:
        """Extrapolated change of the first layer's weights over 5000 such steps, relative to their norm."""
        return None if self.gradient is None else self.gradient * self.lr * EPOCH_BUDGET

    @property
    def trains(self) -> bool | None:
        """Whether the extrapolated change is at least 5 %; None if nothing was recorded."""
        return None if self.relative_change is None else self.relative_change >= MOVED_THRESHOLD

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON and tables."""
        return {
            "depth": self.depth,
            "scheme": self.scheme,
            "lr": self.lr,
            "steps": len(self.losses),
            "gradient": self.gradient,
            "relative_change": self.relative_change,
            "imbalance": self.imbalance,
            "distance": self.distance,
            "loss_start": self.losses[0] if self.losses else None,
            "loss_end": self.losses[-1] if self.losses else None,
            "seconds": round(self.seconds, 2),
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
        >>> check.summary().shape[0], check.results[1].depth
        (2, 3)
    """

    results: tuple[DepthResult, ...]
    title: str = ""

    def summary(self) -> pd.DataFrame:
        """Return a table with one row per depth and scheme."""
        return pd.DataFrame([result.to_dict() for result in self.results])

    def frame(self) -> pd.DataFrame:
        """Return all recorded values, with the columns depth, scheme, epoch, quantity, layer, value."""
        frames = [r.frame.assign(depth=r.depth, scheme=r.scheme) for r in self.results if len(r.frame)]
        columns = ["depth", "scheme", "epoch", "quantity", "layer", "value"]
        return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)

    def figure(self, path: str | Path | None = None) -> Figure:
        """Draw gradient, imbalance, representations and loss over depth.

        Args:
            path: File to write (``.png``, ``.svg`` or ``.pdf``); None writes nothing.

        Returns:
            The figure.
        """
        figure = draw_depth(self.summary(), self.title)
        if path is not None:
            save_figure(figure, path)
        return figure

    def verdict(self) -> str:
        """State for each scheme up to which depth the model can train, and list the notes of the runs."""
        schemes = list(dict.fromkeys(result.scheme for result in self.results))
        lines = [line for scheme in schemes for line in self._scheme_verdict(scheme)]
        notes = [f"{result.scheme}, {result.depth} layers: {result.note}" for result in self.results if result.note]
        return "\n".join([*lines, *dict.fromkeys(notes)])

    def _scheme_verdict(self, scheme: str) -> Iterator[str]:
        results = [result for result in self.results if result.scheme == scheme and result.gradient is not None]
        if not results:
            return
        name = "As built" if scheme == DEFAULT else f"With {scheme}"
        first_failing = next((i for i in range(len(results)) if not any(r.trains for r in results[i:])), None)
        if first_failing is None:
            smallest = min(result.gradient or 0.0 for result in results)
            slow = [str(result.depth) for result in results if not result.trains]
            exception = f", though not at {', '.join(slow)}" if slow else ""
            yield (
                f"{name}, the first layer's relative gradient is at least {smallest:.0e} "
                f"up to {results[-1].depth} layers: it can train{exception}."
            )
            return
        failing = results[first_failing:]
        largest = max(result.gradient or 0.0 for result in failing)
        change = max(result.relative_change or 0.0 for result in failing)
        yield (
            f"{name}, from {failing[0].depth} layers on the first layer's relative gradient is at most {largest:.0e}: "
            f"in {EPOCH_BUDGET} such steps its weights move by {100 * change:.1g} % or less. It will not train."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        results = [result.to_dict() for result in self.results]
        return {"title": self.title, "results": results, "verdict": self.verdict()}

    def __str__(self) -> str:
        headers = ("depth", "scheme", "gradient", "imbalance", "distance", "loss", "steps")
        rows = [
            (
                str(result.depth),
                result.scheme,
                _format(result.gradient),
                _format(result.imbalance),
                _format(result.distance),
                f"{result.losses[0]:.3f} → {result.losses[-1]:.3f}" if result.losses else "–",
                str(len(result.losses)),
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


def depth_check(
    build: ModelBuilder,
    data: Data,
    depths: Sequence[int] = (2, 5, 10, 20, 40),
    schemes: Sequence[str] = (DEFAULT, "bal-o"),
    steps: int = 50,
    *,
    lr: float | None = None,
    seconds: float = 8.0,
    seed: int = 0,
    title: str = "",
) -> DepthCheck:
    """Check in a short run per depth whether a model will train when it is deep.

    For every depth and scheme, takes a few steps of plain gradient descent on the training nodes and records gradients
    and representations of all layers, the initial imbalance and the loss. Plain gradient descent is the strict test:
    Adam enlarges small gradients whether or not they carry information. The random state of torch is restored
    afterwards.

    Args:
        build: ``build(depth)`` returns a model that is called as ``model(x, edge_index)``.
        data: Graph with ``x``, ``edge_index``, ``y`` and, optionally, ``train_mask``.
        depths: Numbers of layers.
        schemes: Initialisation schemes of :func:`equipoise.initialize_`; ``"default"`` keeps the model as built.
        steps: Steps of gradient descent per depth and scheme.
        lr: Learning rate; by default the paper's for each depth (0.1 up to 5 layers, 0.05 up to 20, then 0.005).
        seconds: Time limit per depth and scheme; a run that exceeds it ends early, with a note.
        seed: Seed of the initialisation.
        title: Title of the table and the figure.

    Returns:
        The results, with ``summary()``, ``frame()``, ``figure()`` and ``verdict()``.

    Raises:
        ChoiceError: For an unknown scheme.
        ForwardError: If a model does not return one score per node and class.
        ModelError: If ``build`` fails or does not return a module.
        TrainingError: If the data lack a tensor, or for impossible values of the other arguments.

    Example:
        >>> from equipoise import Stack, load_dataset
        >>> data = load_dataset("synthetic-citation")
        >>> def build(depth):
        ...     return Stack("gatv2", [data.num_features, *[16] * (depth - 1), data.classes])
        >>> check = depth_check(build, data, depths=(2, 4), steps=3)
        >>> check.summary()[["depth", "scheme", "steps"]].values.tolist()
        [[2, 'default', 3], [2, 'bal-o', 3], [4, 'default', 3], [4, 'bal-o', 3]]
    """
    _check_arguments(data, depths, schemes, steps, seconds)
    results: list[DepthResult] = []
    with torch.random.fork_rng(range(torch.cuda.device_count())), _progress_bar() as progress:
        task = progress.add_task("", total=len(depths) * len(schemes) * steps)
        for depth in depths:
            laws: list[Law] | None = None
            for scheme in schemes:
                done = len(results) * steps
                progress.update(task, description=f"{depth} layers, {scheme}", completed=done)
                result = DepthResult(depth, scheme, paper_learning_rate(depth) if lr is None else lr)
                results.append(result)
                model = _build_model(build, result, seed)
                if model is None:
                    continue
                laws = _discover_laws(model, data) if laws is None else [law.bind(model) for law in laws]
                for step in _train(result, model, data, laws, steps=steps, seconds=seconds):
                    progress.update(task, completed=done + step)
    return DepthCheck(tuple(results), title)


def paper_learning_rate(depth: int) -> float:
    """The paper's learning rate of gradient descent on the citation graphs."""
    return 0.1 if depth <= 5 else 0.05 if depth <= 20 else 0.005


def _build_model(build: ModelBuilder, result: DepthResult, seed: int) -> nn.Module | None:
    """Build, initialise and fuse a model; None, with a note, if the scheme does not apply to it."""
    torch.manual_seed(seed)
    try:
        model = build(result.depth)
    except EquipoiseError:
        raise
    except Exception as error:
        raise ModelError(
            f"build({result.depth}) failed: {summarize_error(error)}", remedy="it takes a depth and returns a model"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"build({result.depth}) returned {describe_value(model)}, not a model",
            remedy="it takes a depth and returns a torch.nn.Module",
        )
    check_module(model)
    try:
        if result.scheme != DEFAULT:
            initialize_(model, result.scheme, generator=torch.Generator().manual_seed(seed))
    except EquipoiseError as error:
        result.note = f"this scheme cannot initialise the model: {error.what}"
        return None
    return fuse_(model)


def _discover_laws(model: nn.Module, data: Data) -> list[Law]:
    """Find the model's laws on a small random graph; none if the model does not run on one."""
    try:
        return discover_on_small_graph(model, data.x.shape[1])
    except EquipoiseError:
        return []


def _train(
    result: DepthResult, model: nn.Module, data: Data, laws: list[Law], *, steps: int, seconds: float
) -> Iterator[int]:
    """Take steps of gradient descent up to the time limit and fill in the result.

    Yields:
        The number of steps taken.
    """
    imbalances = [float(law.relative_imbalance().abs().mean()) for law in laws if law.outgoing]
    result.imbalance = max(imbalances, default=None)
    optimizer, start = SGD(model.parameters(), lr=result.lr), time.perf_counter()
    mask = torch.ones(len(data.y), dtype=torch.bool) if data.get("train_mask") is None else data.train_mask
    model.train()
    recorder = Recorder(model, every=max(1, steps // RECORDS), quantities=("gradient", "representation"))
    with recorder, flush_denormals():
        for step in range(1, steps + 1):
            loss = _loss(model, data, mask)
            if not math.isfinite(loss.item()):
                result.note = f"the loss is {loss.item()} at step {step}; try a learning rate below lr={result.lr:g}"
                break
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            recorder.step(step)
            optimizer.step()
            result.losses.append(loss.item())
            result.seconds = time.perf_counter() - start
            yield step
            if result.seconds > seconds and step < steps:
                result.note = f"time limit of {seconds:g} s reached after {step} of {steps} steps"
                break
    result.frame = recorder.frame().drop(columns="neuron")


def _loss(model: nn.Module, data: Data, mask: Tensor) -> Tensor:
    try:
        scores = model(data.x, data.edge_index)
        return F.cross_entropy(scores[mask], data.y[mask])
    except Exception as error:
        raise ForwardError(
            f"the model cannot classify the nodes: {summarize_error(error)}",
            where=type(model).__name__,
            remedy="model(data.x, data.edge_index) must return one score per node and class",
        ) from error


def _check_arguments(data: Data, depths: Sequence[int], schemes: Sequence[str], steps: int, seconds: float) -> None:
    missing = [name for name in ("x", "edge_index", "y") if getattr(data, name, None) is None]
    if missing:
        raise TrainingError(f"the data have no {', '.join(missing)}", remedy="load_dataset returns such data")
    for scheme in schemes:
        if scheme != DEFAULT and scheme not in SCHEMES:
            raise ChoiceError("scheme", scheme, (DEFAULT, *SCHEMES))
    if not depths or not schemes or min(depths) < 1:
        raise TrainingError(
            "at least one depth (1 or more) and one scheme are required",
            where=f"depths={tuple(depths)}, schemes={tuple(schemes)}",
        )
    if steps < 1 or not seconds > 0:
        raise TrainingError("steps and seconds must be positive", where=f"steps={steps}, seconds={seconds}")


def _progress_bar() -> Progress:
    """A progress bar on stderr, disabled if stderr is not a terminal."""
    console = Console(stderr=True)
    columns = ("{task.description:<22}", BarColumn(24), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"
