"""Candidate slots of a law, and their gradient products: the columns of the search.

The first half is geometry: it maps names and shapes to slots, i.e. to every way to index a parameter by neuron.
:class:`GradientProducts` samples θ·∇θ at random parameters and sums it over the entries of each neuron. The input and
the output of the network count as parameters here, so that the search recognises the weights connected to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from math import ceil, prod

import torch
from torch import Tensor, nn

from equipoise.laws.probe import Probe
from equipoise.laws.slot import Slot

MAX_BLOCKS = 16  # maximum number of blocks of equal width in a concatenation, counted from either end
MAX_NEURONS_PER_SAMPLE = 256  # neurons per sample in the matrix; a law is verified on all of them afterwards

Shapes = Mapping[str, tuple[int, ...]]


def candidate_widths(shapes: Shapes) -> list[int]:
    """Numbers of neurons to try, largest first: sizes of axes, and of flattened axes that two parameters share."""
    axes = {size for shape in shapes.values() for size in shape if size > 1}
    flattened = [{prod(shape[a : b + 1]) for a, b in _axis_ranges(shape)} for shape in shapes.values()]
    shared = {
        size for sizes in flattened for size in sizes if size > 1 and sum(size in other for other in flattened) > 1
    }
    return sorted(axes | shared, reverse=True)


def full_slots(model: nn.Module, name: str, shape: tuple[int, ...], neurons: int) -> list[Slot]:
    """Enumerate the slots of ``neurons`` neurons that use every entry of a parameter.

    These are axes and flattened axes of that size, and axes whose size is a multiple of it, folded over blocks
    (averaged heads) or over neighbours (the pixels of a flattened channel).

    Args:
        model: Module that holds the parameter.
        name: Name of the parameter.
        shape: Shape of the parameter.
        neurons: Number of neurons.

    Returns:
        The slots, without duplicates.
    """
    inner: dict[int, None] = {}  # ordered set
    for first, last in _axis_ranges(shape):
        size, stride = prod(shape[first : last + 1]), prod(shape[last + 1 :])
        if size == neurons:
            inner[stride] = None
        elif first == last and size % neurons == 0:
            inner[stride] = inner[stride * (size // neurons)] = None
    return [Slot(model, name, shape, neurons, stride) for stride in inner]


def window_slots(
    model: nn.Module, name: str, shape: tuple[int, ...], neurons: int, block_sizes: Iterable[int]
) -> list[Slot]:
    """Enumerate the slots of ``neurons`` consecutive indices of a longer axis: one block of a concatenation.

    A block starts at a multiple of its own width or after up to three blocks of other sizes, counted from either end.

    Args:
        model: Module that holds the parameter.
        name: Name of the parameter.
        shape: Shape of the parameter.
        neurons: Number of neurons.
        block_sizes: Sizes that other blocks of the concatenation may have.

    Returns:
        The slots, by axis and start.
    """
    sizes = [size for size in block_sizes if size > 1]
    slots = []
    for axis, length in enumerate(shape):
        if length <= neurons:
            continue
        last_start = length - neurons
        starts = {neurons * block for block in range(MAX_BLOCKS)}
        starts |= {sum(before) for count in (1, 2, 3) for before in combinations_with_replacement(sizes, count)}
        starts = {start for start in starts | {last_start - start for start in starts} if 0 <= start <= last_start}
        slots += [Slot(model, name, shape, neurons, prod(shape[axis + 1 :]), length, start) for start in sorted(starts)]
    return slots


def split_blocks(slot: Slot) -> list[Slot]:
    """Split a slot that folds up to ``MAX_BLOCKS`` blocks of an axis into these blocks."""
    first, last = slot.axes
    length = prod(slot.shape[first : last + 1]) // (slot.inner // prod(slot.shape[last + 1 :]))
    if length == slot.length or length > slot.neurons * MAX_BLOCKS:
        return [slot]
    starts = range(0, length, slot.neurons)
    return [Slot(slot.model, slot.name, slot.shape, slot.neurons, slot.inner, length, start) for start in starts]


def merge_blocks(slots: Sequence[Slot]) -> list[Slot]:
    """Inverse of :func:`split_blocks`: replace a complete set of blocks by the slot that folds them."""
    result = list(slots)
    for slot in slots:
        if slot.start or slot.length == slot.neurons or slot.length % slot.neurons:
            continue
        blocks = [replace(slot, start=start) for start in range(0, slot.length, slot.neurons)]
        if all(block in slots for block in blocks):
            result[result.index(slot)] = replace(slot, length=slot.neurons)
            result = [other for other in result if other not in blocks]
    return result


def slots_overlap(one: Slot, other: Slot) -> bool:
    """Whether two slots index the same axis of the same parameter at common positions."""
    if one.name != other.name:
        return False
    if (one.inner, one.length) == (other.inner, other.length):
        return max(one.start, other.start) < min(one.start + one.neurons, other.start + other.neurons)
    return max(one.inner, other.inner) < min(one.inner * one.length, other.inner * other.length)


def _axis_ranges(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(first, last) for first in range(len(shape)) for last in range(first, len(shape))]


class GradientProducts:
    """Samples of θ·∇θ at random parameters, drawn on demand, and the candidate slots over which they are summed.

    Args:
        probe: Probe that computes the samples.

    Attributes:
        shapes: Shapes of all parameters, inputs and outputs with a nonzero product, by name.
    """

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.samples = [probe.gradient_products()]
        self.shapes = {n: tuple(product.shape) for n, product in self.samples[0].items() if bool(product.any())}
        self._registration_order = {name: number for number, name in enumerate(self.shapes)}
        self._first_reads = probe.trace().first_reads()

    def sort_key(self, slot: Slot) -> tuple[bool, int, int]:
        """Order of slots: input and output, then parameters by first use in the forward pass, then by registration."""
        is_parameter = slot.name in self.probe.parameters
        first_read = self._first_reads.get(slot.name, len(self._first_reads))
        return is_parameter, first_read, self._registration_order[slot.name]

    def full_slots(self, neurons: int) -> list[Slot]:
        """Slots of ``neurons`` neurons that use every entry of a parameter, input or output; folds as their blocks."""
        folds = [s for n, shape in self.shapes.items() for s in full_slots(self.probe.model, n, shape, neurons)]
        return list(dict.fromkeys(block for slot in folds for block in split_blocks(slot)))

    def window_slots(self, neurons: int) -> list[Slot]:
        """Slots of ``neurons`` neurons that use a window of one axis of a parameter."""
        sizes = {size for shape in self.shapes.values() for size in shape}
        return [
            slot
            for name in self._parameter_names()
            for slot in window_slots(self.probe.model, name, self.shapes[name], neurons, sizes)
        ]

    def whole_parameters(self) -> list[Slot]:
        """Every parameter as a slot of one neuron."""
        names = self._parameter_names()
        return [Slot(self.probe.model, n, self.shapes[n], 1, prod(self.shapes[n])) for n in names]

    def draw_samples_for(self, slots: list[Slot]) -> None:
        """Draw samples until a matrix with one column per slot has more rows than columns."""
        count = ceil(1.25 * len(slots) / min(slots[0].neurons, MAX_NEURONS_PER_SAMPLE)) + 2
        while len(self.samples) < count:
            self.samples.append(self.probe.gradient_products())

    def column(self, slot: Slot) -> Tensor:
        """⟨θ_i, ∇θ_i⟩, one row per sample and neuron."""
        return torch.cat([self._rows(slot, sample[slot.name]) for sample in self.samples])

    def absolute_column(self, slot: Slot) -> Tensor:
        """Σ |θ·∇θ| over the same entries: the scale against which cancellation in the column is measured."""
        return torch.cat([self._rows(slot, sample[slot.name].abs()) for sample in self.samples])

    def _parameter_names(self) -> list[str]:
        return [name for name in self.shapes if name in self.probe.parameters]

    def _rows(self, slot: Slot, product: Tensor) -> Tensor:
        sums = slot.sum_per_neuron(product)
        if slot.neurons <= MAX_NEURONS_PER_SAMPLE:
            return sums
        return sums[torch.linspace(0, slot.neurons - 1, MAX_NEURONS_PER_SAMPLE).long()]
