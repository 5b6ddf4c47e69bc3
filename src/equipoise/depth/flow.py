"""Gradient flow beyond the checked steps: a few long steps in place of many short ones.

Gradient descent with a small learning rate η follows the gradient flow dθ/dt = −∇L: k steps cover the time kη. On a
plateau gradients are small, and fewer, longer steps cover the same time. A step of size hη counts as h steps. The
multiple h grows after every step that does not raise the loss; otherwise the step is undone and h halved. Steps of
size η are never undone. So the time that a network needs to leave a plateau is followed, not extrapolated. A smooth
flow covers the time in about as many steps as were checked; a stiff one, whose steps are often undone, gets more.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat

import torch
from torch.optim import Optimizer

from equipoise.training.loop import Stepper
from equipoise.training.sources import Loaders

GROWTH = 1.3  # of the multiple after an accepted step
TOLERANCE = 1e-3  # relative rise of the loss that is accepted
MAX_STEPS = 4  # long steps, as a multiple of the checked steps


def follow_flow(
    stepper: Stepper, batches: Loaders, *, done: int, budget: int, goal: float, seconds: float
) -> list[tuple[float, float]]:
    """Follow the gradient flow until the loss reaches the goal, the time is over or all long steps are taken.

    Args:
        stepper: Takes the steps; changes model and optimizer.
        batches: Training batches; the loss of a step's own batch decides whether the step is kept.
        done: Number of steps taken so far; at most four times as many long steps follow, accepted or not.
        budget: Time at which to end, in steps of the optimizer.
        goal: Loss at which to end.
        seconds: Time limit.

    Returns:
        Pairs of time, in steps of the optimizer, and loss.
    """
    points: list[tuple[float, float]] = []
    now, multiple, longest = float(done), 1.0, max(1.0, 2 * (budget - done) / done)
    end = time.perf_counter() + seconds
    for _, batch in zip(range(MAX_STEPS * done), chain.from_iterable(repeat(batches.loaders["train"])), strict=False):
        if now >= budget or time.perf_counter() > end:
            break
        stepper.model.train()
        loss, _count = batches.batch_loss(batch)
        before, undo = loss.item(), _snapshot(stepper)
        with _longer_steps(stepper.optimizer, multiple):
            stepper.step(loss, before)
        with torch.no_grad():
            after = batches.batch_loss(batch)[0].item()
        if multiple > 1 and not after <= (1 + TOLERANCE) * before:
            undo()
            multiple = max(1.0, multiple / 2)
            continue
        now += multiple
        points.append((now, after))
        if after <= goal or not math.isfinite(after):
            break
        multiple = min(GROWTH * multiple, longest)
    return points


def _snapshot(stepper: Stepper) -> Callable[[], None]:
    """Copy parameters and optimizer state; returns a function that restores them."""
    parameters = list(stepper.model.parameters())
    values = [parameter.detach().clone() for parameter in parameters]
    state = copy.deepcopy(stepper.optimizer.state_dict())

    def restore() -> None:
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
        stepper.optimizer.load_state_dict(state)

    return restore


@contextmanager
def _longer_steps(optimizer: Optimizer, multiple: float) -> Iterator[None]:
    """Multiply the learning rate of all parameter groups."""
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = multiple * rate
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
