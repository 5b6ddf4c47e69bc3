"""Optimizers and learning-rate schedules, by name or by a factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from equipoise.errors import ChoiceError, TrainingError
from equipoise.laws.validation import describe_value, is_number, summarize_error

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

ARTICLES = {"optimizer": "an", "schedule": "a"}
MAX_FLOAT = torch.finfo(torch.float32).max

OptimizerFactory = Callable[[Iterator[nn.Parameter]], Optimizer]
ScheduleFactory = Callable[[Optimizer], LRScheduler]
Built = TypeVar("Built", Optimizer, LRScheduler)


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
    if lr is None or not is_number(lr) or not 0 < lr <= MAX_FLOAT:
        raise TrainingError(
            f"{name} needs a finite learning rate above 0, got lr={lr!r}", remedy="choose one, such as 0.05"
        )
    if not is_number(weight_decay) or not 0 <= weight_decay <= MAX_FLOAT:
        raise TrainingError(
            f"the weight decay must be finite and at least 0, got {weight_decay!r}", remedy="choose one, such as 5e-4"
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
    remedy = "pass a name, a torch optimizer, or a function of the parameters that returns one"
    built = _build(optimizer, Optimizer, "optimizer", model.parameters(), remedy)
    if inspect.signature(built.step).parameters["closure"].default is inspect.Parameter.empty:
        raise TrainingError(
            f"{type(built).__name__} evaluates the loss several times per step (its step requires a closure)",
            remedy=f"use an optimizer with one gradient per step: {', '.join(OPTIMIZERS)}",
        )
    check_trains(built, model)
    return built


def check_trains(optimizer: Optimizer, model: nn.Module) -> None:
    """Raise :class:`TrainingError` if an optimizer trains no parameter of a model."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(parameter) in trained for parameter in model.parameters()):
        raise TrainingError(
            "the optimizer has no parameter of this model",
            where=type(optimizer).__name__,
            remedy="build it from model.parameters(), after all changes of the model",
        )


def _build(given: Any, kind: type[Built], name: str, argument: Any, remedy: str) -> Built:
    """Return an optimizer or schedule as given, or as a factory builds it."""
    if isinstance(given, kind):
        return given
    if not callable(given):
        raise TrainingError(f"expected {ARTICLES[name]} {name}, got {type(given).__name__}", remedy=remedy)
    try:
        built = given(argument)
    except (TypeError, ValueError) as error:
        raise TrainingError(f"{name}= failed: {summarize_error(error)}", where=repr(given), remedy=remedy) from error
    if not isinstance(built, kind):
        raise TrainingError(f"{name}= returned {describe_value(built)}", where=repr(given), remedy=remedy)
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
    remedy = "pass a function of the optimizer: schedule=lambda optimizer: StepLR(optimizer, 100)"
    built = _build(schedule, LRScheduler, "schedule", optimizer, remedy)
    if built.optimizer is not optimizer:
        raise TrainingError(
            "the schedule belongs to another optimizer",
            where=type(built).__name__,
            remedy=remedy,
        )
    return built


def advance(schedule: LRScheduler, loss: float) -> None:
    """Take one step of a schedule; ``ReduceLROnPlateau`` follows the training loss."""
    if isinstance(schedule, ReduceLROnPlateau):
        schedule.step(loss)
    else:
        schedule.step()
