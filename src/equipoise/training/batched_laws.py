"""All laws of a network in one batch: c and δ of thousands of neurons in a few kernel calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.kernels.reductions import add_products, as_flat_array
from equipoise.laws.discover import discover
from equipoise.laws.law import Law
from equipoise.laws.slot import Slot
from equipoise.training.recording import Array

SMALL_GRAPH_NODES = 24


@dataclass(frozen=True)
class BalanceState:
    """The quantities of all laws after a backward pass, one float64 entry per neuron.

    Attributes:
        c: Σ_in ‖θ‖² − Σ_out ‖θ‖², terms with exponent n weighted by |n|
        delta: Σ_in ⟨θ,∇θ⟩ − Σ_out ⟨θ,∇θ⟩, likewise
        gradients: Σ_in ‖∇θ‖² − Σ_out ‖∇θ‖², likewise
        terms: Σ |⟨θ,∇θ⟩| over all slots: the scale for rounding errors in δ
    """

    c: Array
    delta: Array
    gradients: Array
    terms: Array

    def predicted_drift(self, lr: float, weight_decay: float = 0.0) -> Array:
        """Return c(t+1) − c(t) of one step of gradient descent, exactly.

        c(t+1) − c(t) = ((1−γμ)² − 1) c − 2γ(1−γμ) δ + γ² (Σ_in ‖∇θ‖² − Σ_out ‖∇θ‖²)

        Args:
            lr: learning rate γ.
            weight_decay: L2 penalty μ, added to the gradient.

        Returns:
            The drift of every neuron.
        """
        shrinkage = 1.0 - lr * weight_decay
        return (shrinkage**2 - 1.0) * self.c - 2.0 * lr * shrinkage * self.delta + lr**2 * self.gradients


class BatchedLaws:
    """The laws of a network as one vector of neurons, grouped by layer, in the order of each layer's laws.

    Gives the same numbers as :meth:`Law.imbalance` and :meth:`Law.residual`, but in float64 for parameters of any
    dtype: the change of c in one step is below the resolution of float32.

    Args:
        laws: the laws.
        layer_numbers: the layer of every law, from 1.

    Example:
        >>> import torch
        >>> from equipoise import discover
        >>> mlp = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False))
        >>> for parameter, value in zip(mlp.parameters(), (1.0, 2.0)):
        ...     _ = nn.init.constant_(parameter, value)
        >>> laws = BatchedLaws(discover(mlp, torch.randn(5, 2)), [1])
        >>> laws.imbalance().tolist()
        [-2.0, -2.0, -2.0]
    """

    def __init__(self, laws: Sequence[Law], layer_numbers: Sequence[int]) -> None:
        self._terms: list[tuple[int, Slot, nn.Parameter, slice]] = []
        self._layers: dict[int, slice] = {}
        self.neurons = 0
        for layer in dict.fromkeys(layer_numbers):
            first = self.neurons
            for number, law in zip(layer_numbers, laws, strict=True):
                if number == layer:
                    neurons = slice(self.neurons, self.neurons + law.neurons)
                    self._terms += [(exponent, slot, slot.parameter, neurons) for exponent, slot in law.terms]
                    self.neurons = neurons.stop
            self._layers[layer] = slice(first, self.neurons)

    def balance(self) -> BalanceState:
        """Compute c, δ and the other quantities; call it after a backward pass."""
        return BalanceState(*self._sums(with_gradients=True))

    def imbalance(self) -> Array:
        """Compute c only, which needs no gradients."""
        c: Array = self._sums(with_gradients=False)[0]
        return c

    def _sums(self, with_gradients: bool) -> Array:
        arrays: dict[nn.Parameter, tuple[Array, Array]] = {}
        sums = np.zeros((4, self.neurons))
        for exponent, slot, parameter, neurons in self._terms:
            if parameter not in arrays:
                weight = _real_array(parameter)
                gradient = weight
                if with_gradients:  # slot.gradient raises an error that names the parameter if there is none
                    gradient = _real_array(slot.gradient if parameter.grad is None else parameter.grad)
                arrays[parameter] = weight, gradient
            inner = 2 * slot.inner if parameter.is_complex() else slot.inner
            width = slot.neurons // slot.groups
            for group in range(slot.groups):
                weight, gradient = (_group(array, slot, group, inner) for array in arrays[parameter])
                first = neurons.start + group * width
                group_sums = sums[:, first : first + width]
                add_products(weight, gradient, slot.length, slot.start, inner, exponent, group_sums)
        return sums

    def split_by_layer(self, values: Array) -> Iterator[tuple[int, Array]]:
        """Yield each layer's number and a copy of the values of its neurons."""
        for layer, neurons in self._layers.items():
            yield layer, values[neurons].copy()


def _real_array(values: Tensor) -> Array:
    """A tensor as a flat array; complex numbers as pairs of real numbers."""
    return as_flat_array(torch.view_as_real(values.detach()) if values.is_complex() else values)


def _group(array: Array, slot: Slot, group: int, inner: int) -> Array:
    """The entries of one group of a slot; the array itself if there is only one."""
    if slot.groups == 1:
        return array
    return array.reshape(-1, slot.groups, slot.middle * slot.length * inner)[:, group].ravel()


def discover_on_small_graph(model: nn.Module, num_features: int) -> list[Law]:
    """Discover the laws of a graph network on a small random graph; laws do not depend on the data.

    Args:
        model: called as ``model(x, edge_index)``.
        num_features: number of node features.

    Returns:
        The laws, as :func:`~equipoise.discover` returns them. The graph is always the same.

    Example:
        >>> from equipoise import Stack
        >>> print(discover_on_small_graph(Stack("gcn", [6, 4, 3]), 6)[0])
        convs.0.lin.weight[i,:] = convs.1.lin.weight[:,i]   (4 neurons)
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(SMALL_GRAPH_NODES, num_features, generator=generator)
    edge_index = torch.randint(0, SMALL_GRAPH_NODES, (2, 3 * SMALL_GRAPH_NODES), generator=generator)
    return discover(model, x, edge_index)
