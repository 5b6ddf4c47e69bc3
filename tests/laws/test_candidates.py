from math import prod

from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from equipoise.laws.candidates import blocks, folded, full_slots, overlap, widths, windows
from equipoise.laws.slot import Slot

MODEL = nn.Module()


def texts(slots):
    return [str(slot) for slot in slots]


def test_widths_are_axes_and_shared_runs_largest_first():
    assert widths({"W": (8, 3), "att": (1, 2, 4), "V": (5, 8)}) == [8, 5, 4, 3, 2]
    assert widths({"A": (3, 4), "B": (3, 4)}) == [12, 4, 3]  # entry by entry, where two have the same


def test_full_slots_are_axes_runs_and_folds():
    assert texts(full_slots(MODEL, "W", (8, 3), 8)) == ["W[i,:]"]
    assert texts(full_slots(MODEL, "att", (1, 2, 4), 8)) == ["att[i]"]
    assert texts(full_slots(MODEL, "att", (1, 2, 4), 4)) == ["att[:,i]"]
    assert texts(full_slots(MODEL, "W", (8, 3), 4)) == ["W[4h+i,:]", "W[2i+k,:]"]
    assert texts(full_slots(MODEL, "W", (4, 4), 4)) == ["W[i,:]", "W[:,i]"]
    assert full_slots(MODEL, "W", (8, 3), 5) == []


def test_the_same_entries_seen_twice_are_one_slot():
    assert len(full_slots(MODEL, "att", (1, 1, 6), 6)) == 1


def test_windows_start_after_other_widths():
    starts = {slot.start for slot in windows(MODEL, "W", (3, 36), 12, [10, 8, 12, 6])}
    assert {0, 12, 24, 18, 10} <= starts  # multiples from either end, and after 10 + 8
    assert all(0 <= start <= 24 for start in starts)
    assert windows(MODEL, "W", (3, 4), 4, [4]) == []


@given(st.integers(2, 6), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_folds_and_blocks_are_inverse(neurons, count, before, after):
    shape = (before, count * neurons, after)
    fold = Slot(MODEL, "W", shape, neurons, after)
    parts = blocks(fold)
    assert len(parts) in (1, prod(shape[:2]) // neurons, count)
    assert folded(parts) == [fold]


def test_a_missing_block_is_no_fold():
    parts = blocks(Slot(MODEL, "W", (12, 3), 4, 3))
    assert texts(parts) == ["W[i,:]", "W[4+i,:]", "W[8+i,:]"]
    assert folded(parts[:2]) == parts[:2]


def test_overlap_means_common_axis_and_places():
    rows, columns = Slot(MODEL, "W", (8, 4), 8, 4), Slot(MODEL, "W", (8, 4), 4)
    first, second = blocks(Slot(MODEL, "W", (8, 4), 4, 4))
    assert not overlap(rows, columns)
    assert overlap(rows, first)
    assert not overlap(first, second)
    assert not overlap(rows, Slot(MODEL, "V", (8, 4), 8, 4))
