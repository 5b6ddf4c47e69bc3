"""What is looked at during training: pure functions of parameters, gradients and laws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.laws.law import Law

Array = np.ndarray

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
        weights += _squared_norm(parameter.detach())
        if parameter.grad is not None:
            gradients += _squared_norm(parameter.grad)
    return _ratio(gradients, weights)


def update_size(after: Iterable[Tensor], before: Iterable[Tensor]) -> float:
    """‖θ' − θ‖ / ‖θ‖ of a step from θ to θ', parameters taken together; infinite if only θ is zero.

    Example:
        >>> update_size([torch.tensor([3.0, 5.0])], [torch.tensor([3.0, 4.0])])
        0.2
    """
    weights, steps = 0.0, 0.0
    for new, old in zip(after, before, strict=True):
        weights += _squared_norm(old)
        steps += _squared_norm(new.double() - old.double())
    return _ratio(steps, weights)


def relative_change(now: Tensor, start: Tensor, significant: float = SIGNIFICANT) -> Tensor:
    """|(w − w₀) / w| of the weights with |w| ≥ ``significant``, as one row.

    Example:
        >>> relative_change(torch.tensor([2.0, 1e-9, 4.0]), torch.tensor([1.0, 1.0, 4.0]))
        tensor([0.5000, 0.0000])
    """
    # Four times as fast as an index of truths, and there may be millions of weights.
    return ((now - start) / now).abs().masked_select(now.abs() >= significant)


def absolute_change(now: Tensor, start: Tensor) -> Tensor:
    """|a − a₀| of all entries, as one row: for attention, which may start at zero."""
    return (now - start).abs().flatten()


def share_moved(now: Iterable[Tensor], start: Iterable[Tensor], moved: float = MOVED) -> float:
    """The share of significant weights whose relative change exceeds ``moved``."""
    return share(torch.cat([relative_change(new, old) for new, old in zip(now, start, strict=True)]) > moved)


def share(which: Tensor) -> float:
    """The share of true entries; 0 where there are none.

    Example:
        >>> share(torch.tensor([True, False, False, True]))
        0.5
    """
    return float(which.count_nonzero()) / which.numel() if which.numel() else 0.0


def box(values: Tensor) -> dict[str, float]:
    """The numbers of a box-whisker plot: quartiles, mean, and the last values within 1.5 boxes of the box.

    Example:
        >>> box(torch.tensor([1.0, 2.0, 3.0, 4.0, 100.0]))
        {'low': 1.0, 'q1': 2.0, 'median': 3.0, 'q3': 4.0, 'high': 4.0, 'mean': 22.0}
    """
    ordered = values.detach().double().flatten().sort().values
    # Not torch.quantile, which refuses the 16 million weights and more of a large layer.
    q1, median, q3 = (_quantile(ordered, part) for part in (0.25, 0.5, 0.75))
    reach = 1.5 * (q3 - q1)
    inside = ordered[(ordered >= q1 - reach) & (ordered <= q3 + reach)]
    low, high, mean = float(inside[0]), float(inside[-1]), float(ordered.mean())
    return {"low": low, "q1": q1, "median": median, "q3": q3, "high": high, "mean": mean}


@dataclass(frozen=True)
class Balance:
    """What one law has to say at one moment, neuron by neuron, in float64.

    Attributes:
        c: Σ_in ‖θ‖² − Σ_out ‖θ‖²
        delta: Σ_in ⟨θ,∇θ⟩ − Σ_out ⟨θ,∇θ⟩
        terms: Σ |⟨θ,∇θ⟩| over all slots: what rounding errors in δ have to be held against
        gradients: Σ_in ‖∇θ‖² − Σ_out ‖∇θ‖²
    """

    c: Array
    delta: Array
    terms: Array
    gradients: Array

    def predicted_drift(self, lr: float, weight_decay: float = 0.0) -> Array:
        """c(t+1) − c(t) = ((1−γμ)² − 1) c − 2γ(1−γμ) δ + γ² (Σ_in ‖∇θ‖² − Σ_out ‖∇θ‖²), exactly."""
        keep = 1.0 - lr * weight_decay
        return (keep**2 - 1.0) * self.c - 2.0 * lr * keep * self.delta + lr**2 * self.gradients


def balances(laws: Sequence[Law]) -> list[Balance]:
    """c, δ and their kin of every law after a backward pass.

    The same numbers as :meth:`Law.imbalance` and :meth:`Law.residual`, but in float64 whatever the parameters are.
    """
    wide: dict[str, tuple[Tensor, Tensor]] = {}
    found = []
    for law in laws:
        c, delta, terms, gradients = np.zeros((4, law.neurons))
        for sign, slot in law.terms:
            if slot.name not in wide:
                wide[slot.name] = _wide(slot.parameter), _wide(slot.gradient)
            weight, gradient = (slot.entries(values).numpy() for values in wide[slot.name])
            product = _by_neuron(weight, gradient)
            c += sign * _by_neuron(weight, weight)
            delta += sign * product
            terms += np.abs(product)
            gradients += sign * _by_neuron(gradient, gradient)
        found.append(Balance(c, delta, terms, gradients))
    return found


def imbalances(laws: Sequence[Law]) -> list[Array]:
    """c of every law in float64: its differences from step to step are smaller than float32 can tell."""
    wide: dict[str, Tensor] = {}
    found = []
    for law in laws:
        c = np.zeros(law.neurons)
        for sign, slot in law.terms:
            if slot.name not in wide:
                wide[slot.name] = _wide(slot.parameter)
            weight = slot.entries(wide[slot.name]).numpy()
            c += sign * _by_neuron(weight, weight)
        found.append(c)
    return found


def _wide(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64)


def _by_neuron(one: Array, other: Array) -> Array:
    """Σ one · other of every neuron; both are (outer, neurons, inner). No product is ever held, so this is quick."""
    summed: Array = np.einsum("oni,oni->n", one, other)
    return summed


def _squared_norm(values: Tensor) -> float:
    values = values.to_dense().flatten().double() if values.layout != torch.strided else values.flatten().double()
    return float(values @ values)


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0.0:
        return float("inf") if numerator else 0.0
    return float((numerator / denominator) ** 0.5)


def _quantile(ordered: Tensor, part: float) -> float:
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))
