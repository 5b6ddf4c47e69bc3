"""Candidate slots of a law: every way to index a parameter by neuron.

Geometry only: it maps names and shapes to slots. The gradient products over these slots are the columns of the search
(:mod:`equipoise.laws.products`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod

from torch import nn

from equipoise.laws.slot import Slot

MAX_STACKED_BLOCKS = 4  # projections stacked in one weight: query, key and value, or the gates of an LSTM
MAX_BLOCKS = 3  # blocks of other sizes before or after a block of a concatenation
MIN_GROUPED_AXES = 3  # a grouped convolution has at least (out, in / groups, kernel)

Shapes = Mapping[str, tuple[int, ...]]
Block = tuple[int, int, int]  # length of an axis, start of the block, number of neurons


def candidate_widths(shapes: Shapes, blocks: Iterable[Block] = ()) -> list[int]:
    """Numbers of neurons to try, largest first.

    Args:
        shapes: Shapes of parameters, inputs and outputs, by name.
        blocks: Blocks of concatenations and slices in the forward pass.

    Returns:
        Sizes of axes, of blocks, and of flattened axes that two parameters share.
    """
    axes = {size for shape in shapes.values() for size in shape if size > 1}
    axes |= {neurons for length, _, neurons in blocks if neurons > 1 and length in axes}
    flattened = [{prod(shape[a : b + 1]) for a, b in _axis_ranges(shape)} for shape in shapes.values()]
    shared = {
        size for sizes in flattened for size in sizes if size > 1 and sum(size in other for other in flattened) > 1
    }
    return sorted(axes | shared, reverse=True)


def full_slots(model: nn.Module, name: str, shape: tuple[int, ...], neurons: int) -> list[Slot]:
    """Enumerate the slots of ``neurons`` neurons that use every entry of a parameter.

    These are axes and flattened axes of that size; axes whose size is a multiple of it, folded over blocks (averaged
    heads) or over neighbours (the pixels of a flattened channel); and pairs of axes (groups and their channels).

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
    slots = [Slot(model, name, shape, neurons, stride) for stride in inner]
    for groups, middle, length, stride in _axis_pairs(shape, neurons):
        slots.append(Slot(model, name, shape, neurons, stride, length, groups=groups, middle=middle))
    return slots


def _axis_pairs(shape: tuple[int, ...], neurons: int) -> Iterable[tuple[int, int, int, int]]:
    """Pairs of axes that number ``neurons`` neurons together: (groups, middle, length, inner)."""
    if len(shape) < MIN_GROUPED_AXES:
        return
    for last in range(1, len(shape)):
        length, stride = shape[last], prod(shape[last + 1 :])
        if length < 2 or neurons % length or neurons == length:
            continue
        groups = neurons // length
        for first in range(last):
            between = prod(shape[first + 1 : last])
            if shape[first] == groups and between > 1:
                yield groups, between, length, stride
            elif first == last - 1 and shape[first] % groups == 0 and shape[first] > groups:
                yield groups, shape[first] // groups, length, stride


def window_slots(
    model: nn.Module,
    name: str,
    shape: tuple[int, ...],
    neurons: int,
    block_sizes: Iterable[int],
    *,
    blocks: Iterable[Block] = (),
) -> list[Slot]:
    """Enumerate the slots of ``neurons`` consecutive indices of a longer axis: one block of a concatenation.

    A block starts where the forward pass concatenates or slices features. Compiled functions hide these positions, so
    a block may also lie between up to three other blocks on either side, whose sizes are those of other axes.

    Args:
        model: Module that holds the parameter.
        name: Name of the parameter.
        shape: Shape of the parameter.
        neurons: Number of neurons.
        block_sizes: Sizes that other blocks of the concatenation may have.
        blocks: Blocks of concatenations and slices in the forward pass.

    Returns:
        The slots, by axis and start.
    """
    sizes, slots = frozenset(block_sizes), []
    for axis, length in enumerate(shape):
        if length <= neurons:
            continue
        starts = {start for total, start, size in blocks if (total, size) == (length, neurons)}
        rest = length - neurons
        starts |= {start for start in _sums(sizes) if start <= rest and rest - start in _sums(sizes)}
        slots += [Slot(model, name, shape, neurons, prod(shape[axis + 1 :]), length, start) for start in sorted(starts)]
    return slots


@cache
def _sums(sizes: frozenset[int]) -> frozenset[int]:
    """All sums of up to ``MAX_BLOCKS`` sizes."""
    sums = {0}
    for _ in range(MAX_BLOCKS):
        sums |= {total + size for total in sums for size in sizes}
    return frozenset(sums)


def split_blocks(slot: Slot, blocks: Iterable[Block] = ()) -> list[Slot]:
    """Split a slot that folds an axis into the blocks of that axis, if a law may hold for single blocks.

    Args:
        slot: The slot.
        blocks: Blocks of concatenations and slices in the forward pass.

    Returns:
        The blocks if there are few (stacked projections) or the forward pass concatenates them; otherwise the slot.
    """
    parts = all_blocks(slot)
    length = parts[0].length
    concatenated = any((total, size) == (length, slot.neurons) for total, _, size in blocks)
    return parts if concatenated or len(parts) <= MAX_STACKED_BLOCKS else [slot]


def all_blocks(slot: Slot) -> list[Slot]:
    """All blocks of the axis that a slot folds; the slot itself if it folds none."""
    if slot.groups > 1:
        return [slot]
    first, last = slot.axes
    length = prod(slot.shape[first : last + 1]) // (slot.inner // prod(slot.shape[last + 1 :]))
    if length == slot.length:
        return [slot]
    return [replace(slot, length=length, start=start) for start in range(0, length, slot.neurons)]


def merge_blocks(slots: Sequence[Slot]) -> list[Slot]:
    """Inverse of :func:`split_blocks`: replace a complete set of blocks by the slot that folds them."""
    result = list(slots)
    for slot in slots:
        if slot.start or slot.length == slot.neurons or slot.length % slot.neurons or slot.groups > 1:
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
    if (one.inner, one.length, one.groups, one.middle) == (other.inner, other.length, other.groups, other.middle):
        width = one.neurons // one.groups, other.neurons // other.groups
        return max(one.start, other.start) < min(one.start + width[0], other.start + width[1])
    strides = [(slot.inner, slot.inner * slot.length) for slot in (one, other)]
    if max(strides[0][0], strides[1][0]) < min(strides[0][1], strides[1][1]):
        return True
    return _numbers_groups(one, strides[1]) or _numbers_groups(other, strides[0])


def _numbers_groups(slot: Slot, strides: tuple[int, int]) -> bool:
    """Whether an axis with these strides numbers the groups of a slot: their law is a sum over the law of the slot."""
    first = slot.inner * slot.length * slot.middle
    return slot.groups > 1 and first <= strides[0] and strides[1] <= first * slot.groups


def _axis_ranges(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(first, last) for first in range(len(shape)) for last in range(first, len(shape))]
