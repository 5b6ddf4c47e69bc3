"""Depth check and width check: how gradients, balance, representations and loss of a model change with its size."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, TypeAlias

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_geometric.data import Data

from equipoise.depth.prediction import class_entropy
from equipoise.depth.remedies import DEFAULT, apply_remedy, check_remedy
from equipoise.depth.result import EPOCH_BUDGET, DepthCheck, DepthResult
from equipoise.errors import EquipoiseError, ForwardError, ModelError, TrainingError
from equipoise.experiments.parser import load_experiment
from equipoise.kernels.denormals import flush_denormals
from equipoise.laws.law import Law
from equipoise.laws.rebalance import rebalance_
from equipoise.laws.validation import check_module, describe_value, summarize_error
from equipoise.nn.fused_convs import fuse_
from equipoise.training.batched_laws import discover_on_small_graph
from equipoise.training.optimizers import OptimizerFactory, get_optimizer
from equipoise.training.rebalancer import Rebalancer
from equipoise.training.recorder import Recorder
from equipoise.training.task import (
    Loss,
    check_targets,
    custom_loss,
    default_loss,
    get_targets,
    model_caller,
    select_rows,
)

RECORDS = 10  # recorded steps per run
REBALANCE_EVERY = 10
ADAM_LEARNING_RATE = 1e-3

ModelBuilder = Callable[[int], nn.Module]
CheckData: TypeAlias = Data | Mapping[str, Iterable[Any]]


def depth_check(
    build: ModelBuilder,
    data: CheckData,
    depths: Sequence[int] = (2, 5, 10, 20, 40),
    schemes: Sequence[str] = (DEFAULT, "bal-o"),
    steps: int = 50,
    *,
    loss: Loss | None = None,
    optimizer: str | OptimizerFactory = "sgd",
    lr: float | None = None,
    epochs: int = EPOCH_BUDGET,
    seconds: float = 8.0,
    seed: int = 0,
    title: str = "",
) -> DepthCheck:
    """Check in a short run per depth whether a model will train when it is deep.

    For every depth and scheme, takes a few steps on the training set, records gradients and representations of all
    layers, the initial imbalance and the loss, and predicts whether the loss falls to 90 % of the entropy of the class
    frequencies within ``epochs`` steps. Plain gradient descent is the strict test: Adam enlarges small gradients,
    whether or not they carry information. The random state of torch is restored afterwards.

    Args:
        build: ``build(depth)`` returns a model that is called as ``model(x, edge_index)`` or ``model(data)``.
        data: Graph with ``x``, ``edge_index``, ``y`` and, optionally, ``train_mask``; or loaders of batches
            ``{"train": …}``, as in :func:`~equipoise.train`.
        depths: Numbers of layers.
        schemes: What to compare: ``"default"`` (the model as built), an initialisation scheme of
            :func:`equipoise.initialize_`, ``"rebalanced"`` (as built, rebalanced at the start and every 10 steps),
            ``"skip"`` (identity skips around hidden layers), ``"layer-norm"`` (after hidden layers).
        steps: Steps per depth and scheme.
        loss: Function of model and graph or batch; by default as in :func:`~equipoise.train`.
        optimizer: Name of an optimizer, or a function of the parameters that returns one.
        lr: Learning rate; by default the paper's for this data set and depth (for other data sets that of citation
            graphs) with ``"sgd"``, 0.001 with other names.
        epochs: Number of steps that the prediction refers to.
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
    settings = _Settings(loss, optimizer, lr, steps, epochs, seconds, seed)
    return DepthCheck(_run(build, data, depths, schemes, settings, what="depth"), title)


def width_check(
    build: ModelBuilder,
    data: CheckData,
    widths: Sequence[int] = (16, 32, 64, 128),
    schemes: Sequence[str] = (DEFAULT, "bal-o"),
    steps: int = 50,
    *,
    loss: Loss | None = None,
    optimizer: str | OptimizerFactory = "sgd",
    lr: float | None = None,
    epochs: int = EPOCH_BUDGET,
    seconds: float = 8.0,
    seed: int = 0,
    title: str = "",
) -> DepthCheck:
    """Check in a short run per width what happens as a model gets wider, at one learning rate.

    The same machinery as :func:`depth_check`. Gradients, updates and representations that keep their size allow one
    learning rate for all widths.

    Args:
        build: ``build(width)`` returns a model.
        data: As in :func:`depth_check`.
        widths: Hidden widths.
        schemes: As in :func:`depth_check`.
        steps: Steps per width and scheme.
        loss: As in :func:`depth_check`.
        optimizer: As in :func:`depth_check`.
        lr: Learning rate, the same for all widths; by default 0.1 with ``"sgd"``, 0.001 with other names.
        epochs: Number of steps that the prediction refers to.
        seconds: Time limit per width and scheme.
        seed: Seed of the initialisation.
        title: Title of the table and the figure.

    Returns:
        The results; the column ``depth`` of the tables holds the width.

    Raises:
        ChoiceError: For an unknown scheme.
        ForwardError: If a model does not return one score per node and class.
        ModelError: If ``build`` fails or does not return a module.
        TrainingError: If the data lack a tensor, or for impossible values of the other arguments.

    Example:
        >>> from equipoise import Stack, load_dataset
        >>> data = load_dataset("synthetic-citation")
        >>> def build(width):
        ...     return Stack("gatv2", [data.num_features, width, width, data.classes])
        >>> width_check(build, data, widths=(8, 16), schemes=("default",), steps=3).summary()["depth"].tolist()
        [8, 16]
    """
    settings = _Settings(loss, optimizer, lr, steps, epochs, seconds, seed)
    return DepthCheck(_run(build, data, widths, schemes, settings, what="width"), title, "width")


@dataclass(frozen=True)
class _Settings:
    loss: Loss | None
    optimizer: str | OptimizerFactory
    lr: float | None
    steps: int
    epochs: int
    seconds: float
    seed: int

    def learning_rate(self, data: CheckData, depth: int) -> float:
        if self.lr is not None:
            return self.lr
        if self.optimizer == "sgd":
            return paper_learning_rate(depth, getattr(data, "name", None))
        return ADAM_LEARNING_RATE if isinstance(self.optimizer, str) else float("nan")

    def build_optimizer(self, model: nn.Module, lr: float) -> Optimizer:
        return get_optimizer(self.optimizer, model, lr if isinstance(self.optimizer, str) else self.lr)


def _run(
    build: ModelBuilder,
    data: CheckData,
    sizes: Sequence[int],
    schemes: Sequence[str],
    settings: _Settings,
    *,
    what: str,
) -> tuple[DepthResult, ...]:
    _check_arguments(data, sizes, schemes, settings)
    results: list[DepthResult] = []
    steps = settings.steps
    with torch.random.fork_rng(range(torch.cuda.device_count())), _progress_bar() as progress:
        task = progress.add_task("", total=len(sizes) * len(schemes) * steps)
        for size in sizes:
            for scheme in schemes:
                done = len(results) * steps
                progress.update(task, description=f"{what} {size}, {scheme}", completed=done)
                lr = settings.learning_rate(data, size if what == "depth" else 2)
                result = DepthResult(size, scheme, lr, budget=settings.epochs)
                results.append(result)
                model = _build_model(build, result, settings.seed)
                if model is None:
                    continue
                for step in _train(result, model, data, settings):
                    progress.update(task, completed=done + step)
    return tuple(results)


def paper_learning_rate(depth: int, dataset: str | None = None) -> float:
    """The paper's learning rate of gradient descent for a data set and depth.

    Args:
        depth: Number of layers; between two of the paper's depths, the deeper one counts.
        dataset: Name of a data set of the paper; any other has the learning rates of the citation graphs.

    Returns:
        The learning rate.

    Example:
        >>> paper_learning_rate(10), paper_learning_rate(10, "texas")
        (0.05, 0.01)
    """
    sgd = load_experiment("sgd")
    names = sgd.axes["dataset"]
    cells = sgd.subset(dataset=["cora" if dataset is None or dataset not in names else dataset]).specs
    rates = {spec.depth: spec.lr for spec in cells}
    return rates[min((known for known in rates if known >= depth), default=max(rates))]


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
    result.note = apply_remedy(model, result.scheme, seed)
    return None if result.note else fuse_(model)


def _discover_laws(model: nn.Module, data: CheckData) -> list[Law]:
    """Find the model's laws on a small random graph; none if the model does not run on one."""
    x = getattr(data, "x", None)
    try:
        return [] if x is None else discover_on_small_graph(model, x.shape[1])
    except EquipoiseError:
        return []


def _train(result: DepthResult, model: nn.Module, data: CheckData, settings: _Settings) -> Iterator[int]:
    """Take steps up to the time limit and fill in the result.

    Yields:
        The number of steps taken.
    """
    laws = _discover_laws(model, data)
    imbalances = [float(law.relative_imbalance().abs().mean()) for law in laws if law.outgoing]
    result.imbalance = max(imbalances, default=None)
    optimizer, start = settings.build_optimizer(model, result.lr), time.perf_counter()
    rebalancer = None
    if result.scheme == "rebalanced":
        try:
            rebalance_(laws)
            rebalancer = Rebalancer(laws, REBALANCE_EVERY, optimizer=optimizer)
        except EquipoiseError as error:
            result.note = f"the model cannot be rebalanced: {error.what}"
            return
        if not laws:
            result.note = "the model cannot be rebalanced: no law is known"
            return
    model.train()
    steps = settings.steps
    quantities = ("gradient", "representation", "update")
    every = max(1, steps // RECORDS)
    recorder = Recorder(model, every=every, quantities=quantities, optimizer=optimizer, alerts=False)
    with recorder, flush_denormals():
        for step, loss in zip(range(1, steps + 1), _losses(model, data, settings.loss, result), strict=False):
            if not math.isfinite(loss.item()):
                result.note = f"the loss is {loss.item()} at step {step}; try a learning rate below lr={result.lr:g}"
                break
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if rebalancer is not None:
                rebalancer.step()
            recorder.step(step)
            optimizer.step()
            result.losses.append(loss.item())
            result.seconds = time.perf_counter() - start
            yield step
            if result.seconds > settings.seconds and step < steps:
                result.note = f"time limit of {settings.seconds:g} s reached after {step} of {steps} steps"
                break
    result.frame = recorder.frame().drop(columns="neuron")


def _losses(model: nn.Module, data: CheckData, loss: Loss | None, result: DepthResult) -> Iterator[Tensor]:
    """Yield the loss of one training batch after the other, without end; also fills in the entropy of the classes."""
    batches = chain.from_iterable(repeat(data["train"])) if isinstance(data, Mapping) else repeat(data)
    call, checked = model_caller(model), False
    if loss is None:
        once = data["train"] if isinstance(data, Mapping) else [data]
        targets = [_training_targets(batch) for batch in once]
        if not targets:
            raise TrainingError("the loader train has no batch", remedy="use a list or a loader, not an iterator")
        result.entropy = class_entropy(torch.cat(targets))
    for batch in batches:
        if loss is not None:
            yield custom_loss(loss, model, batch)
            continue
        rows = select_rows(batch, "train")
        try:
            scores, targets_of_batch = call(batch, None)[rows], get_targets(batch)[rows]
            if not checked:
                check_targets(targets_of_batch, "train", scores.detach())
            checked = True
            step_loss = default_loss(scores, targets_of_batch)
        except EquipoiseError:
            raise
        except Exception as error:
            raise ForwardError(
                f"the model cannot classify the nodes: {summarize_error(error)}",
                where=type(model).__name__,
                remedy="model(data.x, data.edge_index) must return one score per node and class",
            ) from error
        yield step_loss


def _training_targets(batch: Any) -> Tensor:
    targets = get_targets(batch)
    try:
        return targets[select_rows(batch, "train")]
    except IndexError as error:
        raise TrainingError(
            f"train_mask does not fit targets of shape {tuple(targets.shape)}: {error}",
            where="train_mask",
            remedy="masks and targets need one entry per node",
        ) from error


def _check_arguments(data: CheckData, sizes: Sequence[int], schemes: Sequence[str], settings: _Settings) -> None:
    if isinstance(data, Mapping):
        missing = [] if data.get("train") is not None else ["loader train"]
    else:
        required = ("x", "edge_index") if settings.loss is not None else ("x", "edge_index", "y")
        missing = [name for name in required if getattr(data, name, None) is None]
    if missing:
        raise TrainingError(f"the data have no {', '.join(missing)}", remedy="load_dataset returns such data")
    if not isinstance(data, Mapping) and not (isinstance(data.x, Tensor) and data.x.dim() == 2):
        what = f"data.x is {describe_value(data.x)}, expected features of shape (nodes, features)"
        raise TrainingError(what, where="data.x", remedy="load_dataset returns such data")
    for scheme in schemes:
        check_remedy(scheme)
    if not sizes or not schemes or min(sizes) < 1:
        raise TrainingError(
            "at least one size (1 or more) and one scheme are required",
            where=f"sizes={tuple(sizes)}, schemes={tuple(schemes)}",
        )
    if settings.steps < 1 or not settings.seconds > 0 or settings.epochs < 1:
        raise TrainingError(
            "steps, epochs and seconds must be positive",
            where=f"steps={settings.steps}, epochs={settings.epochs}, seconds={settings.seconds}",
        )


def _progress_bar() -> Progress:
    """A progress bar on stderr, disabled if stderr is not a terminal."""
    console = Console(stderr=True)
    columns = ("{task.description:<22}", BarColumn(24), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
