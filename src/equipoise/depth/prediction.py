"""The prediction of a check: will this network train, judged by the first steps.

A network *trains* if it learns more than the class frequencies: its training loss falls to 90 % of their entropy, the
least loss of a constant prediction (without classes: to 90 % of the first loss). Four cases are told apart:

1. The loss is NaN or infinite, or has risen.
2. The loss is below the goal already.
3. The loss falls at a speed v that grows as exp(κt), as on the way out of a plateau: it covers a distance D in
   log(1 + κD/v)/κ steps, and in D/v at constant speed.
4. The loss slows down. At the same rate it would end above the goal, so it stays on a plateau; it leaves it if the
   updates of the first layer grow, after they have added up to the norm of its weights.
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


@dataclass(frozen=True)
class Prediction:
    """What the first steps predict.

    Attributes:
        outlook: ``"trains"``, ``"slow"`` (falls, but not within the budget), ``"plateau"``, ``"rises"`` or
            ``"diverges"``.
        steps: Estimated number of steps to the goal; None if it is not reached.
    """

    outlook: Outlook
    steps: float | None = None


def class_entropy(targets: Tensor) -> float | None:
    """Compute the entropy of the class frequencies, in nats.

    Args:
        targets: Classes, or zeros and ones.

    Returns:
        The entropy; None for targets that are not classes.

    Example:
        >>> round(class_entropy(torch.tensor([0, 0, 1, 1])), 4)
        0.6931
    """
    binary = bool(((targets == 0) | (targets == 1)).all())
    if targets.dim() != 1 or (targets.is_floating_point() and not binary):
        return None
    frequencies = torch.bincount(targets.long()).double() / len(targets)
    return float(torch.special.entr(frequencies).sum())


def predict(
    losses: Sequence[float], updates: Sequence[tuple[int, float]], entropy: float | None, budget: int
) -> Prediction:
    """Predict whether a network trains within a number of steps.

    Args:
        losses: Training loss at each step; a NaN or infinite one at the end if the run diverged.
        updates: Pairs of step and ‖θ(t+1) − θ(t)‖/‖θ(t)‖ of the first layer.
        entropy: Entropy of the class frequencies, if known.
        budget: Number of steps.

    Returns:
        The prediction.

    Example:
        >>> predict([1.6 - 0.001 * step for step in range(50)], [], entropy=1.6, budget=1000).outlook
        'trains'
        >>> predict([1.6 - 0.001 * step for step in range(50)], [], entropy=1.6, budget=100).outlook
        'slow'
    """
    values = np.array(losses)
    if not np.isfinite(values).all() or not len(values):
        return Prediction("diverges")
    window = max(1, len(values) // 5)
    end = float(np.median(values[-window:]))
    goal = GOAL * (values[0] if entropy is None else entropy)
    if end <= goal:
        return Prediction("trains", float(len(values)))
    if end > RISE * values[0] and (entropy is None or end > RISE * entropy):
        return Prediction("rises")
    steps = _steps_to(goal, values, updates)
    if steps is None:
        return Prediction("plateau")
    return Prediction("trains" if steps <= budget else "slow", steps)


def _steps_to(goal: float, losses: np.ndarray, updates: Sequence[tuple[int, float]]) -> float | None:
    """Steps until the loss reaches the goal; None if it stays on a plateau."""
    done, end = len(losses), float(losses[-1])
    half = max(2, done // 2)
    speeds = [-_slope(np.arange(len(part)), part) for part in (losses[:half], losses[half:])]
    if len(losses[half:]) < 2 or speeds[1] <= 0:
        return _steps_off_the_plateau(done, updates)
    if speeds[0] <= speeds[1]:
        growth = math.log(speeds[1] / speeds[0]) / half if speeds[0] > 0 else 0.0
        return done + _time(end - goal, speeds[1], growth)
    decay = math.log(speeds[0] / speeds[1]) / half
    if end - speeds[1] / decay <= goal:
        return done - math.log1p(-decay * (end - goal) / speeds[1]) / decay
    return _steps_off_the_plateau(done, updates)


def _steps_off_the_plateau(done: int, updates: Sequence[tuple[int, float]]) -> float | None:
    """Steps until growing updates of the first layer add up to the norm of its weights; None if they do not grow."""
    recorded = [(step, size) for step, size in updates[len(updates) // 2 :] if 0 < size < math.inf]
    if len(recorded) < 2:
        return None
    steps, sizes = np.array(recorded).T
    growth = _slope(steps, np.log(sizes))
    return done + _time(1.0, float(sizes[-1]), growth) if growth > 0 else None


def _time(distance: float, speed: float, growth: float) -> float:
    """Time for a distance at a speed that grows as exp(growth · t)."""
    return distance / speed if growth * distance < 1e-9 * speed else math.log1p(growth * distance / speed) / growth


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(x, y, 1)[0])
