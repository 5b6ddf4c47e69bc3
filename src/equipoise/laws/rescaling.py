"""All laws of a network as one linear map from log λ to the factors of its parameters.

Entry k of a parameter carries the exponents n_k of the laws that it belongs to. Rescaling all neurons by λ = exp(s)
multiplies the entry by exp(n_k·s) and its gradient by exp(−n_k·s). :class:`Rescaling` holds the exponents as one sparse
matrix N with one row per entry and one column per neuron, and computes exp(N s), Nᵀ w and Nᵀ diag(w) N.

Entries with equal rows are summed to one *cell* first (:mod:`equipoise.laws.cells`): the solvers then read every
parameter once, and the large matrix of the first layer has one cell per neuron.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.laws.cells import Array, BlockCells, CellKind, Indices, Member, MultipleCells, SingleCells
from equipoise.laws.law import Law
from equipoise.laws.slot import Slot

Operator = Callable[[Array], Array]


@dataclass(frozen=True)
class _Source:
    """Entries of a parameter, and the cells to which they are added.

    Attributes:
        kind: Number of the kind of cells.
        target: Index of the cells among those of this kind.
        entries: Numbers of the entries; None for all of them.
        bins: The cell of every entry; None for one entry per cell, in order.
        member: Sums the entries of a parameter that belongs to a single law; None otherwise.
    """

    kind: int
    target: tuple[int | slice, ...]
    entries: Indices | None = None
    bins: Indices | None = None
    member: Member | None = None

    def add(self, squares: Array, cells: Sequence[Array]) -> None:
        """Add the squares of all entries of the parameter to the cells."""
        target = cells[self.kind][self.target]
        if self.member is not None:
            target += self.member.sum(squares)
            return
        values = squares if self.entries is None else squares[self.entries]
        if self.bins is not None:
            values = _sum_by(self.bins, values, target.size)
        target += values.reshape(target.shape)


class Rescaling:
    """The exponents of all laws of a network; depends on the laws only, not on the values of parameters.

    Args:
        laws: Laws that have an incoming and an outgoing side.

    Attributes:
        neurons: Number of neurons of all laws together: the length of s.
    """

    def __init__(self, laws: Sequence[Law]) -> None:
        self.laws = list(laws)
        members: dict[int, list[Member]] = {}
        self.neurons = 0
        self._starts = []
        for law in self.laws:
            self._starts.append(self.neurons)
            neurons = slice(self.neurons, self.neurons + law.neurons)
            self.neurons = neurons.stop
            for exponent, slot in law.terms:
                members.setdefault(id(slot.parameter), []).append(Member(neurons, float(exponent), slot))
        self._members = [sorted(group, key=lambda member: -member.slot.inner) for group in members.values()]
        self._reach = np.zeros((len(self._members), len(self.laws)))  # Σ|n| by parameter and law
        for row, group in zip(self._reach, self._members, strict=True):
            for member in group:
                row[self._starts.index(member.neurons.start)] += abs(member.exponent)
        self._kinds, self._sources = _assign_cells(self._members, self.neurons)
        self._total_neurons = np.concatenate([kind.neurons for kind in self._kinds])
        self._total_exponents = np.concatenate([kind.exponents for kind in self._kinds])
        self._total_sides = self._total_neurons + self.neurons * (self._total_exponents < 0)

    @property
    def largest_exponent(self) -> float:
        """Largest |n| of a law."""
        return float(np.abs(self._total_exponents).max())

    @property
    def slots(self) -> list[Slot]:
        """One slot of every parameter, in the order of their factors."""
        return [group[0].slot for group in self._members]

    def parameters(self) -> list[nn.Parameter]:
        """The model's current parameters; raises :class:`LawError` if one does not match its law."""
        return [slot.parameter for slot in self.slots]

    def squares(self, tensors: Sequence[Tensor], scales: Sequence[float] | None = None) -> list[Array]:
        """Sum the squares of tensors of the parameters' shapes over the entries of each cell, in float64.

        Args:
            tensors: One tensor per parameter.
            scales: Numbers to divide the squares of every parameter by; None for 1.

        Returns:
            The weights of every kind of cells.
        """
        cells = [np.zeros(kind.shape) for kind in self._kinds]
        for number, (tensor, sources) in enumerate(zip(tensors, self._sources, strict=True)):
            values = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
            values = values.abs() if values.is_complex() else values
            values = values if values.dtype in (torch.float32, torch.float64) else values.float()
            squares: Array = np.square(values.numpy(force=True).reshape(-1), dtype=np.float64)
            if scales is not None and scales[number] != 1.0:
                squares /= scales[number]
            for source in sources:
                source.add(squares, cells)
        return cells

    def rescale(self, cells: Sequence[Array], s: Array, power: float) -> list[Array]:
        """Multiply every cell k by exp(power n_k·s)."""
        return [kind.rescale(weights, s, power) for kind, weights in zip(self._kinds, cells, strict=True)]

    def rescale_(self, tensors: Sequence[Sequence[tuple[Tensor, int]]], s: Array) -> None:
        """Multiply every entry k of tensors by exp(power n_k·s), in place.

        Args:
            tensors: For every parameter, tensors of its shape with their powers: 1 for the parameter itself, −1 for
                gradients, −2 for squared gradients.
            s: log λ.
        """
        for group, scaled in zip(self._members, tensors, strict=True):
            factors = torch.from_numpy(_factors(group, s))
            converted: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}
            for tensor, power in scaled:
                # Factors of low precision would add a systematic error to every entry of a neuron.
                dtype = torch.float32 if tensor.dtype in (torch.float32, torch.complex64) else torch.float64
                key = power, dtype, tensor.device
                if key not in converted:
                    converted[key] = (factors if power == 1 else factors**power).to(tensor.device, dtype)
                if tensor.layout == torch.strided:
                    tensor.mul_(converted[key])
                else:
                    tensor.copy_(tensor.to_dense().mul_(converted[key]).to_sparse())

    def largest_change(self, s: Array) -> float:
        """An upper bound of |n_k·s| over all cells."""
        return float((self._reach @ np.maximum.reduceat(np.abs(s), self._starts)).max())

    def totals(self, cells: Sequence[Array]) -> Array:
        """Sums of the cells by neuron and exponent."""
        return np.concatenate([kind.totals(weights) for kind, weights in zip(self._kinds, cells, strict=True)])

    def sides(self, totals: Array) -> tuple[Array, Array]:
        """The two sides of every neuron: Σ n_k w_k over positive exponents, and Σ |n_k| w_k over negative ones."""
        sides = _sum_by(self._total_sides, np.abs(self._total_exponents) * totals, 2 * self.neurons)
        return sides[: self.neurons], sides[self.neurons :]

    def hessian(self, cells: Sequence[Array], totals: Array) -> tuple[Array, Operator]:
        """Nᵀ diag(w) N for the weights w of the cells.

        Args:
            cells: w, as :meth:`squares` returns them.
            totals: Their :meth:`totals`.

        Returns:
            The diagonal, and a function that multiplies a vector by the matrix.
        """
        diagonal = _sum_by(self._total_neurons, np.square(self._total_exponents) * totals, self.neurons)
        first = self._kinds[0].neurons.size  # cells of a single neuron are on the diagonal only
        neurons, exponents = self._total_neurons[first:], self._total_exponents[first:]
        coupled = list(zip(self._kinds[1:], cells[1:], strict=True))

        def multiply(v: Array) -> Array:
            product: Array = diagonal * v
            if coupled:
                products = np.concatenate([kind.products(weights, v) for kind, weights in coupled])
                product += _sum_by(neurons, exponents * products, len(v))
            return product

        return diagonal, multiply


def _sum_by(bins: Indices, values: Array, size: int) -> Array:
    """Sum values by their bins."""
    return np.bincount(bins, values, size).astype(np.float64, copy=False)


def _assign_cells(parameters: Sequence[Sequence[Member]], neurons: int) -> tuple[list[CellKind], list[list[_Source]]]:
    """Assign every entry of every parameter to a cell.

    Args:
        parameters: The members of every parameter.
        neurons: Number of neurons of all laws.

    Returns:
        The kinds of cells, the first of which are the cells of single neurons; the sources of every parameter.
    """
    exponents = sorted({member.exponent for group in parameters for member in group})
    sources: list[list[_Source]] = []
    blocks: dict[tuple[int, int], dict[tuple[int, float, int, float], tuple[Member, Member]]] = {}  # by shape
    multiple: list[tuple[Sequence[Member], list[Indices]]] = []
    multiple_sources: list[tuple[int, slice, Indices]] = []
    size = 0
    for number, group in enumerate(parameters):
        if len(group) == 1:
            target = exponents.index(group[0].exponent), group[0].neurons
            sources.append([_Source(0, target, member=group[0])])
            continue
        sources.append([])
        positions = [member.positions() for member in group]
        count = np.sum([position >= 0 for position in positions], axis=0)
        for member, position in zip(group, positions, strict=True):
            entries = ((count == 1) & (position >= 0)).nonzero()[0]
            if len(entries):
                target = exponents.index(member.exponent), member.neurons
                sources[-1].append(_Source(0, target, entries, position[entries]))
        for (one, first), (other, second) in combinations(zip(group, positions, strict=True), 2):
            entries = ((count == 2) & (first >= 0) & (second >= 0)).nonzero()[0]
            if not len(entries):
                continue
            shape = one.slot.neurons, other.slot.neurons
            stack = blocks.setdefault(shape, {})
            key = one.neurons.start, one.exponent, other.neurons.start, other.exponent
            stack.setdefault(key, (one, other))
            bins = (first * shape[1] + second)[entries]
            in_order = np.array_equal(bins, np.arange(shape[0] * shape[1]))
            sources[-1].append(
                _Source(
                    1 + list(blocks).index(shape),
                    (list(stack).index(key),),
                    None if len(entries) == len(first) else entries,
                    None if in_order else bins,
                )
            )
        entries = (count > 2).nonzero()[0]
        if len(entries):
            multiple.append((group, [position[entries] for position in positions]))
            multiple_sources.append((number, slice(size, size + len(entries)), entries))
            size += len(entries)
    kinds: list[CellKind] = [SingleCells(exponents, neurons)]
    kinds += [BlockCells(list(stack.values())) for stack in blocks.values()]
    for number, cells, entries in multiple_sources:
        sources[number].append(_Source(len(kinds), (cells,), entries))
    if multiple:
        kinds.append(MultipleCells(multiple))
    return kinds, sources


def _factors(group: Sequence[Member], s: Array) -> Array:
    """exp(N s) for one parameter, in a shape that broadcasts to that of the parameter."""
    slot = group[0].slot
    factors = [np.exp(member.exponent * s[member.neurons]) for member in group]
    if len(group) == 1 and slot.covers_parameter and slot.groups == 1:
        for axis, size in enumerate(slot.shape):
            if size == slot.neurons and prod(slot.shape[axis + 1 :]) == slot.inner:
                return factors[0].reshape(-1, *[1] * (len(slot.shape) - axis - 1))
    product = np.ones(prod(slot.shape))
    for member, factor in zip(group, factors, strict=True):
        member.view(product)[...] *= member.per_neuron(factor)
    return product.reshape(slot.shape)
