"""What is looked at during training: pure functions of parameters and gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

SIGNIFICANT = 1e-4  # weights smaller than this at the end count for nothing
MOVED = 0.05  # relative change from which on a weight has moved


def relative_gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    """‖∇W‖_F / ‖W‖_F of the parameters taken together; 0 without a gradient, infinite if only W is zero.

    Example:
        >>> W = nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> W.square().sum().backward()
        >>> relative_gradient_norm([W])
        2.0
    """
    weights, gradients = 0.0, 0.0
    for parameter in parameters:
        weights += float(parameter.detach().double().square().sum())
        if parameter.grad is not None:
            gradients += float(parameter.grad.double().square().sum())
    if weights == 0.0:
        return float("inf") if gradients else 0.0
    return float((gradients / weights) ** 0.5)


def relative_change(now: Tensor, start: Tensor, significant: float = SIGNIFICANT) -> Tensor:
    """|(w − w₀) / w| of the weights with |w| ≥ ``significant``, as one row.

    Example:
        >>> relative_change(torch.tensor([2.0, 1e-9, 4.0]), torch.tensor([1.0, 1.0, 4.0]))
        tensor([0.5000, 0.0000])
    """
    kept = now.abs() >= significant
    return ((now[kept] - start[kept]) / now[kept]).abs()


def share_moved(now: Iterable[Tensor], start: Iterable[Tensor], moved: float = MOVED) -> float:
    """The share of significant weights whose relative change exceeds ``moved``."""
    changes = torch.cat([relative_change(new, old) for new, old in zip(now, start, strict=True)])
    return float((changes > moved).double().mean()) if len(changes) else 0.0
