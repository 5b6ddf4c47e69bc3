"""All laws of a network as one linear map from log λ to the factors of its parameters.

Entry k of a parameter carries the exponents n_k of the laws that it belongs to. Rescaling all neurons by λ = exp(s)
multiplies the entry by exp(n_k·s) and its gradient by exp(−n_k·s). :class:`Rescaling` holds the exponents as one sparse
matrix N with one row per entry and one column per neuron, and computes exp(N s), Nᵀ w and Nᵀ diag(w) N.

An entry is a *cell* of the matrix. The entries of a parameter that belongs to a single law have equal rows for equal
neurons, so they are summed to one cell per neuron first: the large matrix of the first layer then costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.laws.law import Law
from equipoise.laws.slot import Slot

Array = NDArray[np.float64]
Operator = Callable[[Array], Array]


@dataclass(frozen=True)
class _Member:
    """One slot of one law: the range of the law's neurons in s, and the exponent n of the slot."""

    neurons: slice
    exponent: float
    slot: Slot

    def view(self, cells: NDArray[Any]) -> NDArray[Any]:
        """The cells of every neuron, as a view of shape (outer, groups, middle, neurons per group, inner)."""
        slot = self.slot
        block = cells.reshape(-1, slot.groups, slot.middle, slot.length, slot.inner)
        return block[:, :, :, slot.start : slot.start + slot.neurons // slot.groups]

    def per_neuron(self, values: NDArray[Any]) -> NDArray[Any]:
        """One value per neuron, in a shape that broadcasts to :meth:`view`."""
        return values.reshape(self.slot.groups, 1, -1, 1)

    def sum(self, cells: Array) -> Array:
        """Sum over the cells of every neuron."""
        view = self.view(cells)
        inner: Array = view[..., 0] if self.slot.inner == 1 else view @ np.ones(self.slot.inner)
        total: Array = inner[0, :, 0] if inner.shape[0] == inner.shape[2] == 1 else inner.sum(axis=(0, 2))
        return total.ravel()

    def positions(self) -> NDArray[np.int64]:
        """The neuron of every entry of the parameter; −1 outside the slot."""
        neuron = np.full(np.prod(self.slot.shape, dtype=int), -1)
        self.view(neuron)[...] = self.per_neuron(np.arange(self.slot.neurons))
        return neuron


@dataclass(frozen=True)
class _Pair:
    """Two slots of one parameter: the cells that they share, and the pair of neurons of each."""

    one: _Member
    other: _Member
    cells: NDArray[np.int64]
    pairs: NDArray[np.int64]
    is_matrix: bool = field(init=False)

    @classmethod
    def of(cls, one: _Member, other: _Member) -> _Pair:
        first, second = one.positions(), other.positions()
        shared = ((first >= 0) & (second >= 0)).nonzero()[0]
        return cls(one, other, shared, (first * other.slot.neurons + second)[shared])

    def __post_init__(self) -> None:
        # Rows and columns of a matrix: the cells are the block.
        entries = np.arange(self.one.slot.neurons * self.other.slot.neurons)
        object.__setattr__(self, "is_matrix", np.array_equal(self.pairs, entries) and len(self.cells) == len(entries))

    def block(self, cells: Array) -> Array:
        """Sums over the cells of each pair of neurons, times the product of both exponents."""
        shape = self.one.slot.neurons, self.other.slot.neurons
        if self.is_matrix:
            cells = cells if len(cells) == len(self.cells) else cells[self.cells]  # of a window: some of the cells
        else:
            cells = np.bincount(self.pairs, cells[self.cells], shape[0] * shape[1]).astype(np.float64)
        block: Array = self.one.exponent * self.other.exponent * cells.reshape(shape)
        return block


class Rescaling:
    """The exponents of all laws of a network; depends on the laws only, not on the values of parameters.

    Args:
        laws: Laws that have an incoming and an outgoing side.

    Attributes:
        neurons: Number of neurons of all laws together: the length of s.
    """

    def __init__(self, laws: Sequence[Law]) -> None:
        self.laws = list(laws)
        members: dict[int, list[_Member]] = {}
        self.neurons = 0
        for law in self.laws:
            neurons = slice(self.neurons, self.neurons + law.neurons)
            self.neurons = neurons.stop
            for exponent, slot in law.terms:
                members.setdefault(id(slot.parameter), []).append(_Member(neurons, float(exponent), slot))
        self._members = [sorted(group, key=lambda member: -member.slot.inner) for group in members.values()]
        self._pairs = [[_Pair.of(*pair) for pair in combinations(group, 2)] for group in self._members]

    @property
    def slots(self) -> list[Slot]:
        """One slot of every parameter, in the order of cells and factors."""
        return [group[0].slot for group in self._members]

    def parameters(self) -> list[nn.Parameter]:
        """The model's current parameters; raises :class:`LawError` if one does not match its law."""
        return [slot.parameter for slot in self.slots]

    def squares(self, tensors: Sequence[Tensor]) -> list[Array]:
        """Sum the squares of tensors of the parameters' shapes over the entries of each cell, in float64."""
        cells = []
        for tensor, group in zip(tensors, self._members, strict=True):
            values = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
            values = values.abs() if values.is_complex() else values
            values = values if values.dtype in (torch.float32, torch.float64) else values.float()
            array: Array = np.square(values.numpy(force=True).reshape(-1), dtype=np.float64)
            cells.append(array if len(group) > 1 else group[0].sum(array))
        return cells

    def rescale(self, cells: Sequence[Array], s: Array, power: float) -> list[Array]:
        """Multiply every cell k by exp(power n_k·s)."""
        scaled = []
        for values, group in zip(cells, self._members, strict=True):
            factors = [np.exp(power * member.exponent * s[member.neurons]) for member in group]
            if len(group) == 1:
                scaled.append(values * factors[0])
                continue
            result = values.copy()
            for member, factor in zip(group, factors, strict=True):
                member.view(result)[...] *= member.per_neuron(factor)
            scaled.append(result)
        return scaled

    def rescale_(self, number: int, tensor: Tensor, s: Array, power: float) -> None:
        """Multiply every entry k of a tensor by exp(power n_k·s), in place.

        Args:
            number: Number of the parameter whose shape the tensor has.
            tensor: The parameter itself, its gradient, or a moment of it.
            s: log λ.
            power: 1 for parameters, −1 for gradients, −2 for squared gradients.
        """
        values = tensor.contiguous() if tensor.layout == torch.strided else tensor.to_dense()
        # Factors of low precision would add a systematic error to every entry of a neuron.
        dtype = torch.float32 if values.dtype in (torch.float32, torch.complex64) else torch.float64
        for member in self._members[number]:
            factors = torch.from_numpy(member.per_neuron(np.exp(power * member.exponent * s[member.neurons])))
            member.slot.entries(values).mul_(factors.to(values.device, dtype))
        if values is not tensor:
            tensor.copy_(values if tensor.layout == torch.strided else values.to_sparse())

    def largest_change(self, s: Array) -> float:
        """An upper bound of |n_k·s| over all cells."""
        largest = np.abs(s)
        return max(
            sum(abs(member.exponent) * float(largest[member.neurons].max()) for member in group)
            for group in self._members
        )

    def sums(self, cells: Sequence[Array]) -> list[list[Array]]:
        """Sums of the cells over the entries of each neuron, for every slot of every parameter."""
        return [
            [values] if len(group) == 1 else [member.sum(values) for member in group]
            for values, group in zip(cells, self._members, strict=True)
        ]

    def sides(self, sums: Sequence[Sequence[Array]]) -> tuple[Array, Array]:
        """The two sides of every neuron: Σ n_k w_k over positive exponents, and Σ |n_k| w_k over negative ones."""
        sides = np.zeros((2, self.neurons))
        for totals, group in zip(sums, self._members, strict=True):
            for total, member in zip(totals, group, strict=True):
                sides[int(member.exponent < 0), member.neurons] += abs(member.exponent) * total
        return sides[0], sides[1]

    def hessian(self, cells: Sequence[Array], sums: Sequence[Sequence[Array]]) -> tuple[Array, Operator]:
        """Nᵀ diag(w) N for the weights w of the cells.

        Args:
            cells: w, as :meth:`squares` returns them.
            sums: Their :meth:`sums`.

        Returns:
            The diagonal, and a function that multiplies a vector by the matrix.
        """
        diagonal = np.zeros(self.neurons)
        blocks = []
        for values, totals, group, pairs in zip(cells, sums, self._members, self._pairs, strict=True):
            for total, member in zip(totals, group, strict=True):
                diagonal[member.neurons] += member.exponent**2 * total
            blocks += [(pair.one.neurons, pair.other.neurons, pair.block(values)) for pair in pairs]

        def multiply(v: Array) -> Array:
            product = diagonal * v
            for rows, columns, block in blocks:
                product[rows] += block @ v[columns]
                product[columns] += v[rows] @ block
            return product

        return diagonal, multiply
