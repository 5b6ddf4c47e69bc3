"""Cells: sums over the entries of a network's parameters that every rescaling multiplies by the same factor.

Entry k of a parameter carries the exponents n_k of the laws that it belongs to; :class:`Member` is one of them. Entries
with equal n_k form a cell. There are three kinds:

- :class:`SingleCells`: entries of one neuron, e.g. an attention vector or the whole matrix of the first layer
- :class:`BlockCells`: entries of two neurons, e.g. the rows and columns of a hidden matrix
- :class:`MultipleCells`: entries of three or more neurons

With the weights w of the cells, every kind computes its part of w exp(p N s), Nᵀ w and Nᵀ diag(w) N. A *total* is a sum
of cells that belong to one neuron with one exponent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from equipoise.laws.slot import Slot

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Member:
    """One slot of one law: the range of the law's neurons in s, and the exponent n of the slot."""

    neurons: slice
    exponent: float
    slot: Slot

    def view(self, entries: NDArray[Any]) -> NDArray[Any]:
        """The entries of every neuron, as a view of shape (outer, groups, middle, neurons per group, inner)."""
        slot = self.slot
        block = entries.reshape(-1, slot.groups, slot.middle, slot.length, slot.inner)
        return block[:, :, :, slot.start : slot.start + slot.neurons // slot.groups]

    def per_neuron(self, values: NDArray[Any]) -> NDArray[Any]:
        """One value per neuron, in a shape that broadcasts to :meth:`view`."""
        return values.reshape(self.slot.groups, 1, -1, 1)

    def sum(self, entries: Array) -> Array:
        """Sum over the entries of every neuron."""
        if entries.size == self.slot.neurons:
            return entries
        view = self.view(entries)
        with np.errstate(over="ignore"):  # callers name a parameter whose squares overflow
            inner: Array = view[..., 0] if self.slot.inner == 1 else view @ np.ones(self.slot.inner)
        total: Array = inner[0, :, 0] if inner.shape[0] == inner.shape[2] == 1 else inner.sum(axis=(0, 2))
        return total.ravel()

    def positions(self) -> Indices:
        """The neuron of every entry of the parameter; −1 outside the slot."""
        neuron = np.full(prod(self.slot.shape), -1)
        self.view(neuron)[...] = self.per_neuron(np.arange(self.slot.neurons))
        return neuron

    def indices(self) -> Indices:
        """The entries of s that belong to the law."""
        return np.arange(self.neurons.start, self.neurons.stop)


class CellKind(Protocol):
    """A part of the cells.

    Attributes:
        shape: Shape of their weights.
        neurons: The neuron of every total.
        exponents: The exponent of every total.
    """

    shape: tuple[int, ...]
    neurons: Indices
    exponents: Array

    def rescale(self, weights: Array, s: Array, power: float) -> Array:
        """Multiply the weight of every cell k by exp(power n_k·s)."""

    def totals(self, weights: Array) -> Array:
        """Sums of the cells by neuron and exponent."""

    def products(self, weights: Array, v: Array) -> Array:
        """Σ_k w_k Σ n_kj v_j for every total, over its cells k and over the other neurons j of the cell."""


class SingleCells:
    """Cells of one neuron: one row per exponent, one column per neuron."""

    def __init__(self, exponents: Sequence[float], neurons: int) -> None:
        self.shape: tuple[int, ...] = (len(exponents), neurons)
        self._exponents = np.array(exponents)[:, None]
        self.neurons = np.tile(np.arange(neurons), len(exponents))
        self.exponents = np.repeat(exponents, neurons)

    def rescale(self, weights: Array, s: Array, power: float) -> Array:
        result: Array = weights * np.exp(power * self._exponents * s)
        return result

    def totals(self, weights: Array) -> Array:
        return weights.ravel()

    def products(self, weights: Array, v: Array) -> Array:
        return np.zeros(weights.size, v.dtype)  # there are no other neurons


class BlockCells:
    """Cells of two neurons: matrices of equal shape, stacked, with one cell for every pair of a row and a column."""

    def __init__(self, pairs: Sequence[tuple[Member, Member]]) -> None:
        self._rows = np.stack([row.indices() for row, _ in pairs])
        self._columns = np.stack([column.indices() for _, column in pairs])
        self._row_exponents = np.array([[row.exponent] for row, _ in pairs])
        self._column_exponents = np.array([[column.exponent] for _, column in pairs])
        self.shape: tuple[int, ...] = (*self._rows.shape, self._columns.shape[1])
        self.neurons = np.concatenate((self._rows, self._columns), axis=None)
        self.exponents = np.concatenate(
            [
                np.broadcast_to(exponents, indices.shape).ravel()
                for exponents, indices in (
                    (self._row_exponents, self._rows),
                    (self._column_exponents, self._columns),
                )
            ]
        )

    def rescale(self, weights: Array, s: Array, power: float) -> Array:
        rows = np.exp(power * self._row_exponents * s[self._rows])
        columns = np.exp(power * self._column_exponents * s[self._columns])
        result: Array = weights * rows[:, :, None]
        result *= columns[:, None, :]
        return result

    def totals(self, weights: Array) -> Array:
        return np.concatenate((weights @ np.ones(self.shape[2]), np.ones(self.shape[1]) @ weights), axis=None)

    def products(self, weights: Array, v: Array) -> Array:
        rows, columns = self._row_exponents * v[self._rows], self._column_exponents * v[self._columns]
        return np.concatenate((weights @ columns[:, :, None], rows[:, None, :] @ weights), axis=None)


class MultipleCells:
    """Cells of three or more neurons: one row per entry, one column per member of its parameter."""

    def __init__(self, groups: Sequence[tuple[Sequence[Member], Sequence[Indices]]]) -> None:
        width = max(len(members) for members, _ in groups)
        neurons, exponents = [], []
        for members, positions in groups:
            # Exponent 0 for members that an entry does not belong to, with any neuron.
            neurons.append(np.zeros((len(positions[0]), width), int))
            exponents.append(np.zeros((len(positions[0]), width)))
            for column, (member, position) in enumerate(zip(members, positions, strict=True)):
                neurons[-1][:, column] = np.where(position >= 0, member.neurons.start + position, 0)
                exponents[-1][:, column] = np.where(position >= 0, member.exponent, 0.0)
        self._neurons, self._exponents = np.concatenate(neurons), np.concatenate(exponents)
        self.shape: tuple[int, ...] = (len(self._neurons),)
        self.neurons, self.exponents = self._neurons.ravel(), self._exponents.ravel()

    def rescale(self, weights: Array, s: Array, power: float) -> Array:
        result: Array = weights * np.exp(power * (self._exponents * s[self._neurons]).sum(axis=1))
        return result

    def totals(self, weights: Array) -> Array:
        return np.repeat(weights, self._neurons.shape[1])

    def products(self, weights: Array, v: Array) -> Array:
        terms = self._exponents * v[self._neurons]
        result: Array = weights[:, None] * (terms.sum(axis=1, keepdims=True) - terms)
        return result.ravel()
