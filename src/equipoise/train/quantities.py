"""What is looked at during training: pure functions of parameters, gradients and laws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.laws.law import Law
from equipoise.laws.slot import Slot

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
        weights += _squared_norm(array(parameter))
        if parameter.grad is not None:
            gradients += _squared_norm(array(parameter.grad))
    return _ratio(gradients, weights)


def update_size(after: Iterable[Tensor], before: Iterable[Tensor]) -> float:
    """‖θ' − θ‖ / ‖θ‖ of a step from θ to θ', parameters taken together; infinite if only θ is zero.

    Example:
        >>> update_size([torch.tensor([3.0, 5.0])], [torch.tensor([3.0, 4.0])])
        0.2
    """
    weights, steps = 0.0, 0.0
    for new, old in zip(after, before, strict=True):
        weights += _squared_norm(array(old))
        steps += _squared_norm(array(new) - array(old))
    return _ratio(steps, weights)


def relative_change(now: Tensor, start: Tensor, significant: float = SIGNIFICANT) -> Array:
    """|(w − w₀) / w| of the weights with |w| ≥ ``significant``, as one row.

    Example:
        >>> relative_change(torch.tensor([2.0, 1e-9, 4.0]), torch.tensor([1.0, 1.0, 4.0])).tolist()
        [0.5, 0.0]
    """
    w, w0 = array(now), array(start)
    with np.errstate(divide="ignore", invalid="ignore"):  # what is divided by zero does not count
        changes: Array = np.abs((w - w0) / w)[np.abs(w) >= significant]
    return changes


def absolute_change(now: Tensor, start: Tensor) -> Array:
    """|a − a₀| of all entries, as one row: for attention, which may start at zero."""
    changes: Array = np.abs(array(now) - array(start))
    return changes


def share_moved(now: Iterable[Tensor], start: Iterable[Tensor], moved: float = MOVED) -> float:
    """The share of significant weights whose relative change exceeds ``moved``."""
    return share(np.concatenate([relative_change(new, old) for new, old in zip(now, start, strict=True)]) > moved)


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
    wide: dict[str, tuple[Array, Array]] = {}
    found = []
    for law in laws:
        c, delta, terms, gradients = np.zeros((4, law.neurons))
        for sign, slot in law.terms:
            if slot.name not in wide:
                parameter = slot.parameter  # looked up by name, so once is enough
                nabla = slot.gradient if parameter.grad is None else parameter.grad
                wide[slot.name] = _wide(parameter), _wide(nabla)
            weight, gradient = (_entries(slot, values) for values in wide[slot.name])
            product = _by_neuron(weight, gradient)
            c += sign * _by_neuron(weight, weight)
            delta += sign * product
            terms += np.abs(product)
            gradients += sign * _by_neuron(gradient, gradient)
        found.append(Balance(c, delta, terms, gradients))
    return found


def imbalances(laws: Sequence[Law]) -> list[Array]:
    """c of every law in float64: its differences from step to step are smaller than float32 can tell."""
    wide: dict[str, Array] = {}
    found = []
    for law in laws:
        c = np.zeros(law.neurons)
        for sign, slot in law.terms:
            if slot.name not in wide:
                wide[slot.name] = _wide(slot.parameter)
            weight = _entries(slot, wide[slot.name])
            c += sign * _by_neuron(weight, weight)
        found.append(c)
    return found


def _wide(values: Tensor) -> Array:
    return array(values).astype(np.float64)


def _entries(slot: Slot, values: Array) -> Array:
    """As :meth:`Slot.entries`: (outer, neurons, inner)."""
    return values.reshape(-1, slot.length, slot.inner)[:, slot.start : slot.start + slot.neurons]


def _by_neuron(one: Array, other: Array) -> Array:
    """Σ one · other of every neuron; both are (outer, neurons, inner). No product is ever held, so this is quick."""
    summed: Array = np.einsum("oni,oni->n", one, other)
    return summed


def array(values: Tensor) -> Array:
    """A tensor's numbers as one row; of what has no counterpart in NumPy (bfloat16), as float32.

    These quantities are many passes over few numbers, which NumPy makes in a fraction of torch's time.
    """
    values = values.detach().to("cpu")
    values = values.to_dense() if values.layout != torch.strided else values
    flat: Array = (values.float() if values.dtype == torch.bfloat16 else values).reshape(-1).numpy()
    return flat


def _squared_norm(values: Array) -> float:
    wide = values.astype(np.float64)
    return float(wide @ wide)


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0.0:
        return float("inf") if numerator else 0.0
    return float((numerator / denominator) ** 0.5)
