"""Which slots a law could be made of: every way to read a parameter neuron by neuron.

Geometry only: names and shapes in, slots out. The input and the output of the network count as parameters here, so that
the weights that read the one and write the other are seen to do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from math import prod

from torch import nn

from equipoise.laws.slot import Slot

MOST_WINDOWS = 16  # how many blocks of equal width a concatenation may have, counted from either end
Shapes = Mapping[str, tuple[int, ...]]


def widths(shapes: Shapes) -> list[int]:
    """Neuron counts worth trying, largest first: every axis, and every flattened run that two parameters share."""
    axes = {size for shape in shapes.values() for size in shape if size > 1}
    runs = [{prod(shape[a : b + 1]) for a, b in _runs(shape)} for shape in shapes.values()]
    shared = {size for sizes in runs for size in sizes if size > 1 and sum(size in other for other in runs) > 1}
    return sorted(axes | shared, reverse=True)


def full_slots(model: nn.Module, name: str, shape: tuple[int, ...], neurons: int) -> list[Slot]:
    """All slots of ``neurons`` neurons that use every entry of the parameter.

    An axis or a flattened run of that size; an axis that is a multiple of it, folded over blocks (averaged heads) or
    over neighbours (the pixels of a flattened channel).
    """
    inner: dict[int, None] = {}  # an ordered set
    for first, last in _runs(shape):
        size, below = prod(shape[first : last + 1]), prod(shape[last + 1 :])
        if size == neurons:
            inner[below] = None
        elif first == last and size % neurons == 0:
            inner[below] = inner[below * (size // neurons)] = None
    return [Slot(model, name, shape, neurons, below) for below in inner]


def windows(model: nn.Module, name: str, shape: tuple[int, ...], neurons: int, sizes: Iterable[int]) -> list[Slot]:
    """Slots of ``neurons`` consecutive places of a longer axis: a block of a concatenation.

    A block may start at a multiple of its own width, or after up to three blocks of other ``sizes``, from either end.
    """
    known = [size for size in sizes if size > 1]
    slots = []
    for axis, length in enumerate(shape):
        if length <= neurons:
            continue
        free = length - neurons
        starts = {neurons * block for block in range(MOST_WINDOWS)}
        starts |= {sum(before) for count in (1, 2, 3) for before in combinations_with_replacement(known, count)}
        starts = {start for start in starts | {free - start for start in starts} if 0 <= start <= free}
        slots += [Slot(model, name, shape, neurons, prod(shape[axis + 1 :]), length, start) for start in sorted(starts)]
    return slots


def blocks(slot: Slot) -> list[Slot]:
    """A slot that folds a few blocks of one axis as those blocks; any other slot as it is."""
    first, last = slot.run
    length = prod(slot.shape[first : last + 1]) // (slot.inner // prod(slot.shape[last + 1 :]))
    if length == slot.length or length > slot.neurons * MOST_WINDOWS:
        return [slot]
    starts = range(0, length, slot.neurons)
    return [Slot(slot.model, slot.name, slot.shape, slot.neurons, slot.inner, length, start) for start in starts]


def folded(slots: Sequence[Slot]) -> list[Slot]:
    """The inverse of :func:`blocks`: all blocks of an axis become the one slot that folds them."""
    result = list(slots)
    for slot in slots:
        if slot.start or slot.length == slot.neurons or slot.length % slot.neurons:
            continue
        tiles = [replace(slot, start=start) for start in range(0, slot.length, slot.neurons)]
        if all(tile in slots for tile in tiles):
            result[result.index(slot)] = replace(slot, length=slot.neurons)
            result = [other for other in result if other not in tiles]
    return result


def overlap(one: Slot, other: Slot) -> bool:
    """Whether two slots of the same parameter run over a common axis, and there over common places."""
    if one.name != other.name:
        return False
    if (one.inner, one.length) == (other.inner, other.length):
        return max(one.start, other.start) < min(one.start + one.neurons, other.start + other.neurons)
    return max(one.inner, other.inner) < min(one.inner * one.length, other.inner * other.length)


def _runs(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(first, last) for first in range(len(shape)) for last in range(first, len(shape))]
