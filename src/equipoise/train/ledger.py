"""All laws of a network as one list of neurons: c and δ of thousands of them in one go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from equipoise.kernels.weights import add_products
from equipoise.laws.law import Law
from equipoise.laws.slot import Slot
from equipoise.train.quantities import Array, row


@dataclass(frozen=True)
class Balance:
    """What laws have to say at one moment, neuron by neuron, in float64.

    Attributes:
        c: Σ_in ‖θ‖² − Σ_out ‖θ‖²
        delta: Σ_in ⟨θ,∇θ⟩ − Σ_out ⟨θ,∇θ⟩
        gradients: Σ_in ‖∇θ‖² − Σ_out ‖∇θ‖²
        terms: Σ |⟨θ,∇θ⟩| over all slots: what rounding errors in δ have to be held against
    """

    c: Array
    delta: Array
    gradients: Array
    terms: Array

    def predicted_drift(self, lr: float, weight_decay: float = 0.0) -> Array:
        """c(t+1) − c(t) = ((1−γμ)² − 1) c − 2γ(1−γμ) δ + γ² (Σ_in ‖∇θ‖² − Σ_out ‖∇θ‖²), exactly."""
        keep = 1.0 - lr * weight_decay
        return (keep**2 - 1.0) * self.c - 2.0 * lr * keep * self.delta + lr**2 * self.gradients


class Ledger:
    """The laws of a network, their neurons in one row: those of one layer side by side, in the order of its laws.

    The same numbers as :meth:`Law.imbalance` and :meth:`Law.residual`, but in float64 whatever the parameters are: the
    differences of c from step to step are smaller than float32 can tell.

    Args:
        laws: the laws.
        places: the layer of every law, from 1.

    Example:
        >>> import torch
        >>> from equipoise import discover
        >>> mlp = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False))
        >>> for parameter, value in zip(mlp.parameters(), (1.0, 2.0)):
        ...     _ = nn.init.constant_(parameter, value)
        >>> ledger = Ledger(discover(mlp, torch.randn(5, 2)), [1])
        >>> ledger.imbalance().tolist()
        [-2.0, -2.0, -2.0]
    """

    def __init__(self, laws: Sequence[Law], places: Sequence[int]) -> None:
        self._terms: list[tuple[int, Slot, nn.Parameter, slice]] = []
        self._layers: dict[int, slice] = {}
        self.neurons = 0
        for number in dict.fromkeys(places):
            first = self.neurons
            for place, law in zip(places, laws, strict=True):
                if place == number:
                    mine = slice(self.neurons, self.neurons + law.neurons)
                    self._terms += [(sign, slot, slot.parameter, mine) for sign, slot in law.terms]
                    self.neurons = mine.stop
            self._layers[number] = slice(first, self.neurons)

    def balance(self) -> Balance:
        """c, δ and their kin, after a backward pass."""
        return Balance(*self._sums(with_gradients=True))

    def imbalance(self) -> Array:
        """c alone, which needs no gradients."""
        c: Array = self._sums(with_gradients=False)[0]
        return c

    def _sums(self, with_gradients: bool) -> Array:
        rows: dict[nn.Parameter, tuple[Array, Array]] = {}
        sums = np.zeros((4, self.neurons))
        for sign, slot, parameter, mine in self._terms:
            if parameter not in rows:
                weight = row(parameter)
                nabla = slot.gradient if with_gradients and parameter.grad is None else parameter.grad
                rows[parameter] = weight, row(nabla) if with_gradients and nabla is not None else weight
            add_products(*rows[parameter], slot.length, slot.start, slot.inner, sign, sums[:, mine])
        return sums

    def by_layer(self, values: Array) -> Iterator[tuple[int, Array]]:
        """One number a neuron, layer by layer."""
        for number, mine in self._layers.items():
            yield number, values[mine].copy()
