"""The prediction of a check: does this network train within a number of steps, judged by a few.

A network *trains* if it learns more than the class frequencies: its training loss falls to 90 % of their entropy, the
least loss of a constant prediction (without classes: to 90 % of the first loss). In this order:

1. The loss of the checked steps becomes NaN or infinite: it diverges.
2. It is below the goal, or gradient flow, followed with steps of adaptive size up to the given number of steps
   (:mod:`equipoise.depth.flow`), reaches the goal: it trains.
3. It is above its first value, also at the end of the flow: it rises. A loss that rises at first may still fall.
4. It reaches the goal within the given number of steps even if its last pace keeps slowing down: it trains.
5. It takes up to ten times as many steps if its pace does not slow down, or less than half of the given number of
   steps was followed: slow. Otherwise it is a plateau.

The pace is the slope of a line through the last points. With a learning rate at the edge of stability the loss
fluctuates, and the flow cannot take longer steps. Where noise hides the slope of the last points, the pace is that of
the whole flow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Outlook = Literal["trains", "slow", "plateau", "rises", "diverges"]

GOAL = 0.9  # of the entropy of the class frequencies
RISE = 1.02  # a loss above this multiple of its first value has risen
CLEAR = 2  # standard errors of a speed that differs from 0
FOLLOWED = 0.5  # of the budget, before "will not train" is claimed
PLATEAU = 10  # multiple of the budget beyond which a pace counts as none


@dataclass(frozen=True)
class Prediction:
    """What the first steps predict.

    Attributes:
        outlook: ``"trains"``, ``"slow"`` (falls, but not within the budget), ``"plateau"``, ``"rises"`` or
            ``"diverges"``.
        steps: Estimated number of steps to the goal; None without an estimate.
    """

    outlook: Outlook
    steps: float | None = None


def class_entropy(targets: Tensor) -> float | None:
    """Compute the entropy of the class frequencies, in nats.

    Args:
        targets: Classes, or zeros and ones.

    Returns:
        The entropy; None for targets that are not classes (numbers, several per row, negative labels).

    Example:
        >>> round(class_entropy(torch.tensor([0, 0, 1, 1])), 4)
        0.6931
    """
    binary = bool(((targets == 0) | (targets == 1)).all())
    if targets.dim() != 1 or (targets.is_floating_point() and not binary) or bool((targets < 0).any()):
        return None
    frequencies = torch.unique(targets, return_counts=True)[1].double() / len(targets)
    return float(torch.special.entr(frequencies).sum())


def goal_loss(first: float, entropy: float | None) -> float:
    """The loss that counts as trained: 90 % of the entropy of the classes, or of the first loss."""
    return GOAL * (first if entropy is None else entropy)


def predict(
    losses: Sequence[float], flow: Sequence[tuple[float, float]], entropy: float | None, budget: int
) -> Prediction:
    """Predict whether a network trains within a number of steps.

    Args:
        losses: Training loss at each step; a NaN or infinite one at the end if the run diverged.
        flow: Pairs of time, in steps, and loss along the gradient flow that continues the steps; may be empty.
        entropy: Entropy of the class frequencies, if known.
        budget: Number of steps.

    Returns:
        The prediction.

    Example:
        >>> predict([1.6 - 0.001 * step for step in range(50)], [], entropy=1.6, budget=1000).outlook
        'trains'
        >>> predict([1.6 - 0.001 * step for step in range(50)], [], entropy=1.6, budget=100).outlook
        'slow'
        >>> predict([1.6, 1.6, 1.6], [(40, 1.5), (80, 1.2)], entropy=1.6, budget=100)
        Prediction(outlook='trains', steps=80.0)
    """
    values = np.array(losses)
    if not len(values) or not np.isfinite([*values, *(loss for _, loss in flow)]).all():
        return Prediction("diverges")
    goal = goal_loss(float(values[0]), entropy)
    reached = [float(len(values))] if _end(values) <= goal else [time for time, loss in flow if loss <= goal]
    if reached:
        return Prediction("trains", float(reached[0]))
    points = np.array([*enumerate(values, start=1), *flow])
    if _end(points[:, 1]) > RISE * max(values[0], entropy or 0.0):
        return Prediction("rises")
    recent = points[-len(flow) // 2 :] if len(flow) > 1 else points[len(points) // 2 :]
    speed, error = _speed(recent[len(recent) // 2 :])
    if speed <= CLEAR * error and _end(recent[:, 1]) - goal < (speed + CLEAR * error) * PLATEAU * budget:
        recent = points[len(values) // 2 :]  # noise; without the first steps, which fall from a bad initialisation
    steps = max(_extrapolate(recent, goal, slowing=True), float(len(values)))
    if steps <= budget:
        return Prediction("trains", steps)
    if steps > PLATEAU * budget:  # "will not train" is the stronger claim: doubts count in favour of the network
        steps = _extrapolate(recent, goal, slowing=False)
    if steps > PLATEAU * budget and points[-1, 0] >= FOLLOWED * budget:
        return Prediction("plateau")
    return Prediction("slow", steps if budget < steps <= PLATEAU * budget else None)


def _end(losses: np.ndarray) -> float:
    """The loss at the end, by the median of the last fifth."""
    return float(np.median(losses[-max(1, len(losses) // 5) :]))


def _extrapolate(points: np.ndarray, goal: float, slowing: bool) -> float:
    """Extrapolate a loss whose speed changes as exp(κt).

    Where the loss does not fall clearly at the end, its speed is that of all points, and κ = 0.

    Args:
        points: Pairs of time and loss.
        goal: Loss to reach.
        slowing: Whether doubts count against the network: κ ≤ 0. Otherwise κ ≥ 0, and two standard errors are added to
            a speed that noise hides.

    Returns:
        The time at which the loss reaches the goal; infinite if it does not.
    """
    half = len(points) // 2
    earlier, later = points[:half], points[half:]
    (end, loss), growth = points[-1], 0.0
    if _falls(later):
        speed, _error = _speed(later)
        if (before := _speed(earlier)[0]) > 0:
            growth = math.log(speed / before) / float(later[:, 0].mean() - earlier[:, 0].mean())
        growth = min(growth, 0.0) if slowing else max(growth, 0.0)
    else:
        speed, error = _speed(points)
        loss = _end(points[:, 1])
        speed += 0.0 if slowing else CLEAR * error
    distance = loss - goal
    if speed <= 0 or growth * distance <= -speed:
        return math.inf
    # A speed v that changes as exp(κt) covers a distance D in the time log(1 + κD/v)/κ.
    negligible = abs(growth) * distance < 1e-9 * speed
    return float(end + (distance / speed if negligible else math.log1p(growth * distance / speed) / growth))


def _falls(points: np.ndarray) -> bool:
    """Whether the loss falls by more than noise explains."""
    speed, error = _speed(points)
    return len(points) > 2 and speed > CLEAR * error


def _speed(points: np.ndarray) -> tuple[float, float]:
    """Speed at which the loss falls, by a line through pairs of time and loss, and its standard error."""
    if len(points) < 2:
        return 0.0, 0.0
    time, loss = (points - points.mean(axis=0)).T
    spread = float(time @ time)
    slope = float(time @ loss) / spread
    rest = loss - slope * time
    return -slope, math.sqrt(float(rest @ rest) / max(len(points) - 2, 1) / spread)
