"""What is looked at during training: pure functions of parameters, gradients and laws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.kernels.weights import add_changes, add_distances, add_norms, add_step

Array = np.ndarray

SIGNIFICANT = 1e-4  # weights smaller than this at the end count for nothing
MOVED = 0.05  # relative change from which on a weight has moved
HALF = 0.5  # the other threshold of the paper's figures: weights that changed by half of what they are
NARROW = (torch.float16, torch.bfloat16)


def relative_gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    """‖∇W‖_F / ‖W‖_F of the parameters taken together; 0 without a gradient, infinite if only W is zero.

    Example:
        >>> W = nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> W.square().sum().backward()
        >>> relative_gradient_norm([W])
        2.0
    """
    norms, alone = np.zeros((2, 2))
    for parameter in parameters:
        if parameter.grad is not None:
            add_norms(row(parameter), row(parameter.grad), norms)
        else:
            add_norms(row(parameter), row(parameter), alone)
    return _ratio(norms[1], norms[0] + alone[0])


def update_size(after: Iterable[Tensor], before: Iterable[Tensor]) -> float:
    """‖θ' − θ‖ / ‖θ‖ of a step from θ to θ', parameters taken together; infinite if only θ is zero.

    Example:
        >>> update_size([torch.tensor([3.0, 5.0])], [torch.tensor([3.0, 4.0])])
        0.2
    """
    norms = np.zeros(2)
    for new, old in zip(after, before, strict=True):
        add_step(row(new), row(old), norms)
    return _ratio(norms[1], norms[0])


def relative_change(now: Tensor, start: Tensor, significant: float = SIGNIFICANT) -> Array:
    """|(w − w₀) / w| of the weights with |w| ≥ ``significant``, as one row.

    Example:
        >>> relative_change(torch.tensor([2.0, 1e-9, 4.0]), torch.tensor([1.0, 1.0, 4.0])).tolist()
        [0.5, 0.0]
    """
    w, w0 = row(now), row(start)
    with np.errstate(divide="ignore", invalid="ignore"):  # what is divided by zero does not count
        changes: Array = np.abs((w - w0) / w)[np.abs(w) >= significant]
    return changes


def absolute_change(now: Tensor, start: Tensor) -> Array:
    """|a − a₀| of all entries, as one row: for attention, which may start at zero."""
    changes: Array = np.abs(row(now) - row(start))
    return changes


class Changes(NamedTuple):
    """Relative changes of weights: their mean, and the shares that changed by more than 5 %, 50 %, and not at all."""

    mean: float
    moved: float
    moved_half: float
    unchanged: float


def changes(now: Iterable[Tensor], start: Iterable[Tensor], significant: float = SIGNIFICANT) -> Changes:
    """What there is to say of :func:`relative_change`, parameters taken together, without a row of them all.

    Example:
        >>> changes([torch.tensor([2.0, 1e-9, 4.0])], [torch.tensor([1.0, 1.0, 4.0])])
        Changes(mean=0.25, moved=0.5, moved_half=0.0, unchanged=0.5)
    """
    sums = np.zeros(5)
    for new, old in zip(now, start, strict=True):
        add_changes(row(new), row(old), significant, MOVED, HALF, sums)
    return Changes(*(sums[1:] / max(sums[0], 1.0)).tolist())


class Distances(NamedTuple):
    """Absolute changes of weights: their mean, and the share that did not change at all."""

    mean: float
    unchanged: float


def distances(now: Iterable[Tensor], start: Iterable[Tensor]) -> Distances:
    """The same of :func:`absolute_change`.

    Example:
        >>> distances([torch.tensor([2.0, 3.0])], [torch.tensor([1.0, 3.0])])
        Distances(mean=0.5, unchanged=0.5)
    """
    sums = np.zeros(3)
    for new, old in zip(now, start, strict=True):
        add_distances(row(new), row(old), sums)
    return Distances(*(sums[1:] / max(sums[0], 1.0)).tolist())


def share(which: Array) -> float:
    """The share of true entries; 0 where there are none.

    Example:
        >>> share(np.array([True, False, False, True]))
        0.5
    """
    return float(np.count_nonzero(which)) / which.size if which.size else 0.0


def box(values: Array) -> dict[str, float]:
    """The numbers of a box-whisker plot: quartiles, mean, and the last values within 1.5 boxes of the box.

    Example:
        >>> box(np.array([1.0, 2.0, 3.0, 4.0, 100.0]))
        {'low': 1.0, 'q1': 2.0, 'median': 3.0, 'q3': 4.0, 'high': 4.0, 'mean': 22.0}
    """
    values = values.astype(np.float64)
    q1, median, q3 = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    reach = 1.5 * (q3 - q1)
    inside = values[(values >= q1 - reach) & (values <= q3 + reach)]
    low, high, mean = float(inside.min()), float(inside.max()), float(values.mean())
    return {"low": low, "q1": q1, "median": median, "q3": q3, "high": high, "mean": mean}


def row(values: Tensor) -> Array:
    """A tensor's numbers in memory order, as one row."""
    return array(values).reshape(-1)


def array(values: Tensor) -> Array:
    """A tensor as kernels take it: on the CPU, dense, and of float32 where its type is narrower."""
    if values.layout != torch.strided:
        values = values.detach().to_dense()
    if values.dtype in NARROW:
        values = values.detach().float()
    numbers: Array = values.numpy(force=True)
    return numbers


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0.0:
        return float("inf") if numerator else 0.0
    return float((numerator / denominator) ** 0.5)
