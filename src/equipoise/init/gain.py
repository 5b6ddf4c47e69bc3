"""Calibration of the gain that balance leaves free, from the scores on real inputs.

Multiplying all weights by one factor g keeps every imbalance c = Σ_in ‖θ‖² − Σ_out ‖θ‖² at zero and changes the size of
the scores: by g^L for a chain of L layers. The procedure of the paper fixes g by β = 2, whatever the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import BalanceError

TARGET = 0.3  # standard deviation of the scores: the first loss then differs from log(classes) by at most about 0.3
TOLERANCE = 0.05  # of the logarithm of their size
MAX_STEPS = 30
MAX_LOG_STEP = 0.5


@torch.no_grad()
def set_gain_(model: nn.Module, *inputs: Any, target: float = TARGET) -> float:
    """Multiply all parameters by one factor such that the scores have a given size.

    The size is the standard deviation over classes, as root mean square over nodes. Softmax ignores the mean.

    Args:
        model: a network that returns scores of shape (nodes, classes), or a tuple or dictionary that contains such.
        inputs: positional arguments of the model.
        target: standard deviation of the scores.

    Returns:
        The factor.

    Raises:
        BalanceError: if no factor gives scores of this size: they are zero, not finite, or do not depend on it.

    Example:
        >>> from torch import nn
        >>> mlp = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
        >>> x = torch.randn(50, 3)
        >>> factor = set_gain_(mlp, x)
        >>> 0.28 < float((mlp(x) - mlp(x).mean(1, keepdim=True)).square().mean().sqrt()) < 0.32
        True
    """
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    saved = [parameter.clone() for parameter in parameters]
    training = model.training
    log_gain = None
    try:
        model.eval()
        log_gain = _find_log_gain(lambda log_gain: _log_size_at(model, inputs, parameters, saved, log_gain), target)
    finally:
        model.train(training)
        for parameter, value in zip(parameters, saved, strict=True):
            parameter.copy_(value * math.exp(log_gain or 0.0))
    return math.exp(log_gain)


def _find_log_gain(log_size: Callable[[float], float], target: float) -> float:
    """Solve log_size(g) = log(target) by a secant method, starting from g = 0."""
    log_gain, size = 0.0, log_size(0.0)
    slope = 1.0  # the network's degree of homogeneity in its parameters
    for _ in range(MAX_STEPS):
        error = math.log(target) - size
        if abs(error) <= TOLERANCE:
            return log_gain
        step = max(-MAX_LOG_STEP, min(MAX_LOG_STEP, error / slope))
        new = log_size(log_gain + step)
        slope = max((new - size) / step, 1.0)
        log_gain, size = log_gain + step, new
    raise BalanceError(
        f"no gain gives scores of standard deviation {target}; they have {math.exp(size):.2g}",
        where="calibrate",
        remedy="scale the last layer by hand, or leave out calibrate",
    )


def _log_size_at(
    model: nn.Module, inputs: Sequence[Any], parameters: Sequence[Tensor], values: Sequence[Tensor], log_gain: float
) -> float:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value * math.exp(log_gain))
    return _log_size(model(*inputs))


def _log_size(output: Any) -> float:
    scores = _first_tensor(output).double()
    size = float((scores - scores.mean(dim=-1, keepdim=True)).square().mean().sqrt())
    if not 0 < size < math.inf:
        raise BalanceError(
            f"the scores have standard deviation {size}", where="calibrate", remedy="check the inputs and the scheme"
        )
    return math.log(size)


def _first_tensor(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output
    return torch.cat([_first_tensor(value) for value in values])
