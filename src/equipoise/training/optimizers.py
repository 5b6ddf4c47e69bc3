"""Optimizers and learning-rate schedules, by name or by a factory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from equipoise.errors import ChoiceError, TrainingError

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "nadam": NAdam,
    "radam": RAdam,
    "adamax": Adamax,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
}

MAX_FLOAT = torch.finfo(torch.float32).max

OptimizerFactory = Callable[[Iterator[nn.Parameter]], Optimizer]
ScheduleFactory = Callable[[Optimizer], LRScheduler]


def build_optimizer(name: str, model: nn.Module, lr: float | None, weight_decay: float = 0.0) -> Optimizer:
    """Build the optimizer with this name for a model's parameters.

    Args:
        name: a key of ``OPTIMIZERS``.
        model: the model.
        lr: learning rate, above 0.
        weight_decay: L2 penalty, added to the gradient (AdamW: decoupled).

    Returns:
        The optimizer.

    Raises:
        ChoiceError: if the name is unknown.
        TrainingError: if the learning rate is missing, it or the weight decay is out of range, or the model has no
            parameters.
    """
    if name not in OPTIMIZERS:
        raise ChoiceError("optimizer", name, OPTIMIZERS)
    if lr is None or not 0 < lr <= MAX_FLOAT:
        raise TrainingError(
            f"{name} needs a finite learning rate above 0, got lr={lr}", remedy="choose one, such as 0.05"
        )
    if not 0 <= weight_decay <= MAX_FLOAT:
        raise TrainingError(
            f"the weight decay must be finite and at least 0, got {weight_decay}", remedy="choose one, such as 5e-4"
        )
    try:
        return OPTIMIZERS[name](model.parameters(), lr=lr, weight_decay=weight_decay, foreach=True)  # type: ignore[call-arg]
    except ValueError as error:  # no parameters
        raise TrainingError(f"{name} cannot train this model: {error}", where=type(model).__name__) from error


def get_optimizer(
    optimizer: str | Optimizer | OptimizerFactory, model: nn.Module, lr: float | None, weight_decay: float = 0.0
) -> Optimizer:
    """Return an optimizer of the model: by name, as given, or by a factory.

    Args:
        optimizer: a key of ``OPTIMIZERS``; an optimizer; or a function of the model's parameters that returns one.
        model: the model.
        lr: learning rate, for a name only.
        weight_decay: L2 penalty, for a name only.

    Returns:
        The optimizer.

    Raises:
        ChoiceError: if the name is unknown.
        TrainingError: if the learning rate is missing, or given in addition to an optimizer or factory.
    """
    if isinstance(optimizer, str):
        return build_optimizer(optimizer, model, lr, weight_decay)
    if lr is not None or weight_decay:
        raise TrainingError(
            "lr and weight_decay apply only to an optimizer given by name",
            where=type(optimizer).__name__,
            remedy="set them in the optimizer, and leave out lr= and weight_decay=",
        )
    built = optimizer if isinstance(optimizer, Optimizer) else None
    if built is None and callable(optimizer):
        built = optimizer(model.parameters())
    if not isinstance(built, Optimizer):
        raise TrainingError(
            f"expected an optimizer, got {type(optimizer if built is None else built).__name__}",
            remedy="pass a name, a torch optimizer, or a function of the parameters that returns one",
        )
    return built


def get_schedule(schedule: LRScheduler | ScheduleFactory | None, optimizer: Optimizer) -> LRScheduler | None:
    """Return a schedule of the optimizer: as given, or by a factory.

    Args:
        schedule: a torch schedule, or a function of the optimizer that returns one.
        optimizer: the optimizer.

    Returns:
        The schedule, if any.

    Raises:
        TrainingError: if the argument is neither, or the schedule belongs to another optimizer.
    """
    if schedule is None:
        return None
    built = schedule if isinstance(schedule, LRScheduler) else schedule(optimizer) if callable(schedule) else None
    if not isinstance(built, LRScheduler):
        raise TrainingError(
            f"expected a schedule, got {type(schedule if built is None else built).__name__}",
            remedy="pass a function of the optimizer: schedule=lambda optimizer: StepLR(optimizer, 100)",
        )
    if built.optimizer is not optimizer:
        raise TrainingError(
            "the schedule belongs to another optimizer",
            where=type(built).__name__,
            remedy="pass a function of the optimizer: schedule=lambda optimizer: StepLR(optimizer, 100)",
        )
    return built


def advance(schedule: LRScheduler, loss: float) -> None:
    """Take one step of a schedule; ``ReduceLROnPlateau`` follows the training loss."""
    if isinstance(schedule, ReduceLROnPlateau):
        schedule.step(loss)
    else:
        schedule.step()
