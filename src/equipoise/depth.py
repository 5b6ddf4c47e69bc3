"""A check for depth: what happens to a model of the user's as it gets deeper, from one start and from another."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim import SGD
from torch_geometric.data import Data

from equipoise.errors import ChoiceError, EquipoiseError, ForwardError, ModelError, TrainingError
from equipoise.init.schemes import SCHEMES, initialize_
from equipoise.kernels.denormals import denormals_as_zero
from equipoise.laws.checks import check_module, describe, first_line
from equipoise.laws.law import Law
from equipoise.nn.fuse import fuse_
from equipoise.report.depth import DEFAULT, Cell, DepthCheck
from equipoise.train.recorder import Recorder
from equipoise.train.small_graph import laws_on_small_graph

RECORDS = 10  # moments of a run that are looked at

Build = Callable[[int], nn.Module]


def depth_check(
    build: Build,
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
    """See, before it costs a week, whether a model will train when it is deep.

    For every depth and start, a short run of plain gradient descent on the training nodes: gradients and
    representations of all layers, the imbalance at the start, the loss. Plain descent is the strict judge: Adam
    enlarges small gradients, whether or not they carry anything.

    Args:
        build: ``build(depth)`` returns a model that is called as ``model(x, edge_index)``: any of PyG's, or your own.
        data: a graph with ``x``, ``edge_index``, ``y`` and ``train_mask``.
        depths: how many layers.
        schemes: starts; ``"default"`` leaves the model as it was built, any other is one of ``initialize_``'s.
        steps: of gradient descent, for each.
        lr: the rate; the paper's for each depth (0.1 up to 5 layers, 0.05 up to 20, then 0.005) if there is none.
        seconds: after which the run of one depth and start ends early, and says so.
        seed: of the starts.
        title: of the table and the figure.

    Example:
        >>> from equipoise import Stack, load_dataset
        >>> data = load_dataset("synthetic-citation")
        >>> def build(depth):
        ...     return Stack("gatv2", [data.num_features, *[16] * (depth - 1), data.classes])
        >>> check = depth_check(build, data, depths=(2, 4), steps=3)
        >>> check.summary()[["depth", "scheme", "steps"]].values.tolist()
        [[2, 'default', 3], [2, 'bal-o', 3], [4, 'default', 3], [4, 'bal-o', 3]]
    """
    _check(data, depths, schemes, steps, seconds)
    cells: list[Cell] = []
    with _bar() as progress:
        task = progress.add_task("", total=len(depths) * len(schemes) * steps)
        for depth in depths:
            laws: list[Law] | None = None
            for scheme in schemes:
                done = len(cells) * steps
                progress.update(task, description=f"{depth} layers, {scheme}", completed=done)
                cell = Cell(depth, scheme, paper_rate(depth) if lr is None else lr)
                cells.append(cell)
                model = _started(build, cell, seed)
                if model is None:
                    continue
                laws = _laws(model, data) if laws is None else [law.bind(model) for law in laws]
                for step in _trained(cell, model, data, laws, steps=steps, seconds=seconds):
                    progress.update(task, completed=done + step)
    return DepthCheck(tuple(cells), title)


def paper_rate(depth: int) -> float:
    """The paper's rate of gradient descent on the citation graphs."""
    return 0.1 if depth <= 5 else 0.05 if depth <= 20 else 0.005


def _started(build: Build, cell: Cell, seed: int) -> nn.Module | None:
    """The model from its start, or None and a note why it has none. Fused where it can be: the numbers are the same."""
    torch.manual_seed(seed)
    try:
        model = build(cell.depth)
    except EquipoiseError:
        raise
    except Exception as error:
        raise ModelError(
            f"build({cell.depth}) failed: {first_line(error)}", remedy="it takes a depth and returns a model"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"build({cell.depth}) returned {describe(model)}, not a model",
            remedy="it takes a depth and returns a torch.nn.Module",
        )
    check_module(model)
    try:
        if cell.scheme != DEFAULT:
            initialize_(model, cell.scheme, generator=torch.Generator().manual_seed(seed))
    except EquipoiseError as error:
        cell.note = f"no start of this kind for this model: {error.what}"
        return None
    return fuse_(model)


def _laws(model: nn.Module, data: Data) -> list[Law]:
    """The model's laws; none where a graph like the user's, only smaller, does not run through it."""
    try:
        return laws_on_small_graph(model, data.x.shape[1])
    except EquipoiseError:
        return []


def _trained(cell: Cell, model: nn.Module, data: Data, laws: list[Law], *, steps: int, seconds: float) -> Iterator[int]:
    """Plain gradient descent until the steps or the seconds are over; what there is to see goes into the cell."""
    imbalances = [float(law.relative_imbalance().abs().mean()) for law in laws if law.outgoing]
    cell.imbalance = max(imbalances, default=None)
    optimizer, start = SGD(model.parameters(), lr=cell.lr), time.perf_counter()
    mask = torch.ones(len(data.y), dtype=torch.bool) if data.get("train_mask") is None else data.train_mask
    model.train()
    record = Recorder(model, every=max(1, steps // RECORDS), quantities=("gradient", "representation"))
    with record, denormals_as_zero():
        for step in range(1, steps + 1):
            loss = _loss(model, data, mask)
            if not math.isfinite(loss.item()):
                cell.note = f"the loss is {loss.item()} at step {step}; try a rate below lr={cell.lr:g}"
                break
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            record.step(step)
            optimizer.step()
            cell.losses.append(loss.item())
            cell.seconds = time.perf_counter() - start
            yield step
            if cell.seconds > seconds and step < steps:
                cell.note = f"out of time after {step} of {steps} steps; seconds={seconds:g} allows no more"
                break
    cell.frame = record.frame().drop(columns="neuron")


def _loss(model: nn.Module, data: Data, mask: Tensor) -> Tensor:
    try:
        scores = model(data.x, data.edge_index)
        return F.cross_entropy(scores[mask], data.y[mask])
    except Exception as error:
        raise ForwardError(
            f"the model does not classify these nodes: {first_line(error)}",
            where=type(model).__name__,
            remedy="it is called as model(data.x, data.edge_index) and returns a score for every node and class",
        ) from error


def _check(data: Data, depths: Sequence[int], schemes: Sequence[str], steps: int, seconds: float) -> None:
    missing = [name for name in ("x", "edge_index", "y") if getattr(data, name, None) is None]
    if missing:
        raise TrainingError(f"the data have no {', '.join(missing)}", remedy="load_dataset returns such data")
    for scheme in schemes:
        if scheme != DEFAULT and scheme not in SCHEMES:
            raise ChoiceError("scheme", scheme, (DEFAULT, *SCHEMES))
    if not depths or not schemes or min(depths) < 1:
        raise TrainingError(
            "there must be at least one depth, of 1 or more, and one scheme",
            where=f"depths={tuple(depths)}, schemes={tuple(schemes)}",
        )
    if steps < 1 or not seconds > 0:
        raise TrainingError("steps and seconds must be above 0", where=f"steps={steps}, seconds={seconds}")


def _bar() -> Progress:
    """A progress bar with the time left; nothing where output does not go to a terminal."""
    console = Console(stderr=True)
    columns = ("{task.description:<22}", BarColumn(24), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
