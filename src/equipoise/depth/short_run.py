"""The short training runs of a check: one per size and scheme, with the steps of :func:`~equipoise.train`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_geometric.data import Data

from equipoise.depth.flow import follow_flow
from equipoise.depth.prediction import class_entropy, goal_loss
from equipoise.depth.remedies import apply_remedy, check_remedy
from equipoise.depth.result import DepthResult
from equipoise.errors import EquipoiseError, ModelError, TrainingError
from equipoise.experiments.parser import load_experiment
from equipoise.kernels.denormals import flush_denormals
from equipoise.laws.discover import discover
from equipoise.laws.law import Law
from equipoise.laws.rebalance import rebalance_
from equipoise.laws.validation import check_module, describe_value, is_integer, is_number, summarize_error
from equipoise.nn.fused_convs import fuse_
from equipoise.training.batched_laws import discover_on_small_graph
from equipoise.training.loop import Stepper, check_clip
from equipoise.training.metrics import Metric, get_metric
from equipoise.training.optimizers import OptimizerFactory, ScheduleFactory, get_optimizer, get_schedule
from equipoise.training.rebalancer import Rebalancer
from equipoise.training.recorder import Recorder
from equipoise.training.sources import Loaders
from equipoise.training.task import Loss, check_loss, get_targets, select_rows, takes_data

RECORDS = 10  # recorded steps per run
REBALANCE_EVERY = 10
ADAM_LEARNING_RATE = 1e-3
# Data sets without an experiment, and the data set whose learning rates apply. On Tolokers, bal-o at the learning rates
# of the citation graphs oscillates with 2 layers; with 10 and 20 layers the first step raises its loss to 38 and 225.
SAME_LEARNING_RATES = {"tolokers": "minesweeper"}

ModelBuilder = Callable[[int], nn.Module]
CheckData: TypeAlias = Data | Mapping[str, Iterable[Any]]


@dataclass(frozen=True)
class Settings:
    """Arguments of a check; see :func:`~equipoise.depth_check`."""

    loss: Loss | None
    metric: str | Metric | None
    optimizer: str | OptimizerFactory
    lr: float | None
    schedule: ScheduleFactory | None
    clip: float | None
    steps: int
    epochs: int
    seconds: float
    seed: int

    def learning_rate(self, data: CheckData, depth: int) -> float:
        """Return the learning rate: as given, the paper's, or a default; NaN if the optimizer's factory sets it."""
        if self.lr is not None:
            return self.lr
        if self.optimizer == "sgd":
            return default_learning_rate(depth, getattr(data, "name", None))
        return ADAM_LEARNING_RATE if isinstance(self.optimizer, str) else float("nan")

    def build_optimizer(self, model: nn.Module, lr: float) -> Optimizer:
        """Build the optimizer of a model."""
        return get_optimizer(self.optimizer, model, lr if isinstance(self.optimizer, str) else self.lr)


def run_checks(
    build: ModelBuilder,
    data: CheckData,
    sizes: Sequence[int],
    schemes: Sequence[str],
    settings: Settings,
    *,
    axis: str,
) -> tuple[DepthResult, ...]:
    """Train a model briefly for every size and scheme.

    Args:
        build: Function of the size that returns a model.
        data: Graph, or loaders of batches.
        sizes: Depths or widths.
        schemes: Initialisation schemes and other remedies.
        settings: Settings of the runs.
        axis: What varies: ``"depth"`` or ``"width"``.

    Returns:
        One result per size and scheme.
    """
    _check_arguments(build, data, sizes, schemes, settings, axis=axis)
    results: list[DepthResult] = []
    used: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()  # a set would compare tensors
    steps = settings.steps
    with torch.random.fork_rng(range(torch.cuda.device_count())), _progress_bar() as progress:
        task = progress.add_task("", total=len(sizes) * len(schemes) * steps)
        for size in sizes:
            for scheme in schemes:
                done = len(results) * steps
                progress.update(task, description=f"{axis} {size}, {scheme}", completed=done)
                lr = settings.learning_rate(data, size if axis == "depth" else 2)
                result = DepthResult(size, scheme, lr, budget=settings.epochs)
                results.append(result)
                model = _build_model(build, result, settings.seed, used)
                if model is None:
                    continue
                for step in _train(result, model, data, settings):
                    progress.update(task, completed=done + step)
    return tuple(results)


def default_learning_rate(depth: int, dataset: str | None = None) -> float:
    """The learning rate of gradient descent for a data set and depth, from the experiment files.

    Args:
        depth: Number of layers; between two depths of the experiment, the deeper one counts.
        dataset: Name of a data set; one that is neither in the paper nor in the experiment ``when-balance-helps`` has
            the learning rates of the citation graphs, except Tolokers, which has those of Minesweeper.

    Returns:
        The learning rate.

    Example:
        >>> default_learning_rate(10), default_learning_rate(10, "texas"), default_learning_rate(10, "minesweeper")
        (0.05, 0.01, 0.01)
    """
    rates = _learning_rates(dataset)
    return rates[min((known for known in rates if known >= depth), default=max(rates))]


@cache
def _learning_rates(dataset: str | None) -> dict[int, float]:
    """The learning rates of a data set by depth."""
    dataset = SAME_LEARNING_RATES.get(str(dataset), dataset)
    experiments = [load_experiment(name) for name in ("sgd", "when-balance-helps")]
    experiment = next((known for known in experiments if dataset in known.axes["dataset"]), None)
    cells = experiments[0].subset(dataset=["cora"]) if experiment is None else experiment.subset(dataset=[str(dataset)])
    return {spec.depth: spec.lr for spec in cells.specs if spec.optimizer == "sgd"}


class TrainingSet(Loaders):
    """The training batches of a check.

    Args:
        model: The model.
        data: Graph, or loaders of batches.
        settings: Settings of the run.
    """

    def __init__(self, model: nn.Module, data: CheckData, settings: Settings) -> None:
        loaders = data if isinstance(data, Mapping) else {"train": [data]}
        super().__init__(model, loaders, get_metric(settings.metric or "accuracy"), settings.loss, ("train",))

    def entropy(self) -> float | None:
        """Entropy of the class frequencies; None for a custom loss."""
        if self.loss is not None:
            return None
        targets = [rows for batch in self.loaders["train"] for rows in select_rows(batch, "train", get_targets(batch))]
        return class_entropy(torch.cat(targets)) if targets else None


def _build_model(
    build: ModelBuilder, result: DepthResult, seed: int, used: WeakValueDictionary[int, nn.Parameter]
) -> nn.Module | None:
    """Build, initialise and fuse a model; None, with a note, if the scheme does not apply to it.

    Args:
        build: The user's function.
        result: The result to fill in; it names size and scheme.
        seed: Seed of the initialisation.
        used: Parameters of the models before by id, to which those of this one are added.

    Returns:
        The model.

    Raises:
        ModelError: ``build`` fails, or returns something else than a new model.
        EquipoiseError: raised by ``build``.
    """
    torch.manual_seed(seed)
    try:
        model = build(result.size)
    except EquipoiseError:
        raise
    except Exception as error:
        raise ModelError(
            f"build({result.size}) failed: {summarize_error(error)}", remedy="it takes a size and returns a model"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"build({result.size}) returned {describe_value(model)}, not a model",
            remedy="it takes a size and returns a torch.nn.Module",
        )
    check_module(model)
    if any(used.get(id(parameter)) is parameter for parameter in model.parameters()):
        raise ModelError(
            f"build({result.size}) returned a model with parameters of an earlier one, which are trained already",
            remedy="build a new model in each call",
        )
    used.update((id(parameter), parameter) for parameter in model.parameters())
    result.note = apply_remedy(model, result.scheme, seed)
    return None if result.note else fuse_(model)


def _discover_laws(model: nn.Module, data: CheckData) -> list[Law]:
    """Find the model's laws on a small random graph, or else on the data or first batch; none if it fails on both."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):  # a loader draws random numbers
        sample = next(iter(data["train"]), None) if isinstance(data, Mapping) else data
    if sample is None:
        return []
    x = getattr(sample, "x", None)
    if isinstance(x, Tensor) and x.dim() == 2 and not takes_data(model):
        with suppress(EquipoiseError):
            return discover_on_small_graph(model, x.shape[1])
    with suppress(EquipoiseError):
        return discover(model, sample)
    return []


def _train(result: DepthResult, model: nn.Module, data: CheckData, settings: Settings) -> Iterator[int]:
    """Take steps up to the time limit and fill in the result.

    Yields:
        The number of steps taken.
    """
    laws = _discover_laws(model, data)
    optimizer, start = settings.build_optimizer(model, result.lr), time.perf_counter()
    rebalancer = None
    if result.scheme == "rebalanced":
        rebalancer = _build_rebalancer(result, laws, optimizer)
        if rebalancer is None:
            return
    imbalances = [float(law.relative_imbalance().abs().mean()) for law in laws if law.outgoing]
    result.imbalance = max(imbalances, default=None)
    steps = settings.steps
    quantities = ("gradient", "representation", "update")
    every = max(1, steps // RECORDS)
    recorder = Recorder(model, every=every, quantities=quantities, optimizer=optimizer, alerts=False)
    schedule = get_schedule(settings.schedule, optimizer)
    stepper = Stepper(model, optimizer, schedule, rebalancer, settings.clip, recorder)
    batches = TrainingSet(model, data, settings)
    result.entropy = batches.entropy()
    losses = chain.from_iterable(iter(lambda: stepper.run_epoch(batches), None))
    with recorder, flush_denormals():
        for step, loss in zip(range(1, steps + 1), losses, strict=False):
            if not math.isfinite(loss):
                result.diverged = True
                result.note = f"the loss is {loss} at step {step}; try a learning rate below lr={result.lr:g}"
                break
            result.losses.append(loss)
            result.seconds = time.perf_counter() - start
            yield step
            if result.seconds > settings.seconds and step < steps:
                result.note = f"time limit of {settings.seconds:g} s reached after {step} of {steps} steps"
                break
    result.frame = recorder.frame().drop(columns="neuron")
    if settings.metric is not None and not result.diverged:
        result.metric = batches.evaluate_split("train")
    goal = goal_loss(result.losses[0], result.entropy) if result.losses else math.inf
    if schedule is None and not result.note and result.losses[-1] > goal:
        stepper = Stepper(model, optimizer, rebalance=rebalancer, clip=settings.clip)
        with flush_denormals():
            result.flow = follow_flow(
                stepper,
                batches,
                done=steps,
                budget=settings.epochs,
                goal=goal,
                seconds=settings.seconds,
            )


def _build_rebalancer(result: DepthResult, laws: Sequence[Law], optimizer: Optimizer) -> Rebalancer | None:
    """Rebalance the model and return its rebalancer; None, with a note, if this is impossible."""
    if not laws:
        result.note = "the model cannot be rebalanced: no law is known"
        return None
    try:
        rebalance_(laws)
        return Rebalancer(laws, REBALANCE_EVERY, optimizer=optimizer)
    except EquipoiseError as error:
        result.note = f"the model cannot be rebalanced: {error.what}"
        return None


def _check_arguments(
    build: ModelBuilder,
    data: CheckData,
    sizes: Sequence[int],
    schemes: Sequence[str],
    settings: Settings,
    *,
    axis: str,
) -> None:
    if isinstance(build, nn.Module) or not callable(build):
        raise ModelError(
            f"build is {describe_value(build)}, not a function",
            remedy=f"pass a function that returns a new model: lambda {axis}: …",
        )
    _check_data(data, settings)
    for name, values in ((f"{axis}s", sizes), ("schemes", schemes)):
        if not isinstance(values, Collection) or isinstance(values, str):
            raise TrainingError(
                f"{name} must be a list, got {values!r}",
                remedy='pass schemes=("default", "bal-o")' if name == "schemes" else f"pass {name}=(2, 5, 10)",
            )
    for scheme in schemes:
        check_remedy(scheme)
    if not len(sizes) or not len(schemes) or not all(is_integer(size) and size > 0 for size in sizes):
        raise TrainingError(
            f"at least one {axis} (an integer of 1 or more) and one scheme are required",
            where=f"{axis}s={tuple(sizes)}, schemes={tuple(schemes)}",
        )
    counts = (settings.steps, settings.epochs)
    valid = all(is_integer(count) and count > 0 for count in counts)
    if not valid or not is_number(settings.seconds) or not settings.seconds > 0:
        raise TrainingError(
            "steps and epochs must be integers of 1 or more, and seconds positive",
            where=f"steps={settings.steps!r}, epochs={settings.epochs!r}, seconds={settings.seconds!r}",
        )
    if not is_integer(settings.seed):
        raise TrainingError(f"seed must be an integer, got {settings.seed!r}")
    if isinstance(settings.optimizer, Optimizer):
        raise TrainingError(
            f"every {axis} has a model of its own, which {type(settings.optimizer).__name__} does not train",
            remedy="pass a name, or a function of the parameters: lambda parameters: Adam(parameters, lr=0.01)",
        )
    if settings.metric is not None:
        get_metric(settings.metric)
    check_loss(settings.loss)
    check_clip(settings.clip)


def _check_data(data: CheckData, settings: Settings) -> None:
    """Check that there is a graph with features, or a loader of training batches."""
    if isinstance(data, Mapping):
        if data.get("train") is None:
            raise TrainingError("there is no loader train", remedy="pass loaders as {'train': …}")
        return
    required = ("x", "edge_index") if settings.loss is not None else ("x", "edge_index", "y")
    if missing := [name for name in required if getattr(data, name, None) is None]:
        raise TrainingError(
            f"the data have no {', '.join(missing)}",
            where=describe_value(data),
            remedy="pass a graph, as load_dataset returns it, or loaders of batches as {'train': …}",
        )
    if not (isinstance(data.x, Tensor) and data.x.dim() == 2):
        what = f"data.x is {describe_value(data.x)}, expected features of shape (nodes, features)"
        raise TrainingError(what, where="data.x", remedy="load_dataset returns such data")


def _progress_bar() -> Progress:
    """A progress bar on stderr, disabled if stderr is not a terminal."""
    console = Console(stderr=True)
    columns = ("{task.description:<22}", BarColumn(24), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
