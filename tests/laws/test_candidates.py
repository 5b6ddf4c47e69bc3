from math import prod

from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from equipoise.laws.candidates import (
    candidate_widths,
    full_slots,
    merge_blocks,
    slots_overlap,
    split_blocks,
    window_slots,
)
from equipoise.laws.slot import Slot

MODEL = nn.Module()


def as_text(slots):
    return [str(slot) for slot in slots]


def test_widths_are_axis_sizes_and_shared_flattened_sizes_in_descending_order():
    assert candidate_widths({"W": (8, 3), "att": (1, 2, 4), "V": (5, 8)}) == [8, 5, 4, 3, 2]
    assert candidate_widths({"A": (3, 4), "B": (3, 4)}) == [12, 4, 3]  # 12: both parameters flattened completely


def test_full_slots_are_axes_flattened_axes_and_folds():
    assert as_text(full_slots(MODEL, "W", (8, 3), 8)) == ["W[i,:]"]
    assert as_text(full_slots(MODEL, "att", (1, 2, 4), 8)) == ["att[i]"]
    assert as_text(full_slots(MODEL, "att", (1, 2, 4), 4)) == ["att[:,i]"]
    assert as_text(full_slots(MODEL, "W", (8, 3), 4)) == ["W[4h+i,:]", "W[2i+k,:]"]
    assert as_text(full_slots(MODEL, "W", (4, 4), 4)) == ["W[i,:]", "W[:,i]"]
    assert full_slots(MODEL, "W", (8, 3), 5) == []


def test_equivalent_slots_are_deduplicated():
    assert len(full_slots(MODEL, "att", (1, 1, 6), 6)) == 1


def test_windows_start_at_multiples_and_after_other_blocks():
    starts = {slot.start for slot in window_slots(MODEL, "W", (3, 36), 12, [10, 8, 12, 6])}
    assert {0, 12, 24, 18, 10} <= starts  # multiples from either end, and after 10 + 8
    assert all(0 <= start <= 24 for start in starts)
    assert window_slots(MODEL, "W", (3, 4), 4, [4]) == []


@given(st.integers(2, 6), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_merge_blocks_is_the_inverse_of_split_blocks(neurons, count, before, after):
    shape = (before, count * neurons, after)
    fold = Slot(MODEL, "W", shape, neurons, after)
    blocks = split_blocks(fold)
    assert len(blocks) in (1, prod(shape[:2]) // neurons, count)
    assert merge_blocks(blocks) == [fold]


def test_an_incomplete_set_of_blocks_is_not_merged():
    blocks = split_blocks(Slot(MODEL, "W", (12, 3), 4, 3))
    assert as_text(blocks) == ["W[i,:]", "W[4+i,:]", "W[8+i,:]"]
    assert merge_blocks(blocks[:2]) == blocks[:2]


def test_slots_overlap_on_a_common_axis_at_common_positions():
    rows, columns = Slot(MODEL, "W", (8, 4), 8, 4), Slot(MODEL, "W", (8, 4), 4)
    first, second = split_blocks(Slot(MODEL, "W", (8, 4), 4, 4))
    assert not slots_overlap(rows, columns)
    assert slots_overlap(rows, first)
    assert not slots_overlap(first, second)
    assert not slots_overlap(rows, Slot(MODEL, "V", (8, 4), 8, 4))
