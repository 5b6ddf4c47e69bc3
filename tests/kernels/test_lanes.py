"""Runs of numbers against the same in numpy, in whole and in odd numbers of lanes."""

import numpy as np
import pytest

from equipoise.kernels.compiled import compiled
from equipoise.kernels.lanes import (
    any_nonzero,
    blocks_for,
    fill,
    filled_up,
    if_positive,
    load,
    number_of,
    rectified,
    store,
    total,
)


@compiled
def arithmetic(x, y, out, start, lanes):
    a, b = load(x, start, lanes), load(y, start, lanes)
    store(out, start, a * b + fill(x, 3, lanes) * if_positive(a, b, a))
    return total(a), any_nonzero(a)


@compiled
def positive_part(x, out, lanes):
    store(out, 0, rectified(load(x, 0, lanes)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [8, 5])
def test_arithmetic(count, dtype):
    rng = np.random.default_rng(0)
    x, y, out = rng.standard_normal(20).astype(dtype), rng.standard_normal(20).astype(dtype), np.zeros(20, dtype)
    added, some = arithmetic(x, y, out, 3, (None,) * count)
    part = slice(3, 3 + count)
    a, b = x[part], y[part]
    np.testing.assert_allclose(out[part], a * b + 3 * np.where(a > 0, b, a), rtol=1e-5)
    assert not out[:3].any()
    assert not out[3 + count :].any()
    np.testing.assert_allclose(added, a.sum(), rtol=1e-5)
    assert some


def test_zero_negative_zero_and_nan():
    x, y, out = np.zeros(8, np.float32), np.ones(8, np.float32), np.empty(8, np.float32)
    x[1] = -0.0
    assert not arithmetic(x, y, out, 0, (None,) * 8)[1]
    assert not out.any()  # zero is not above zero
    x[2] = np.nan
    assert arithmetic(x, y, out, 0, (None,) * 8)[1]


def test_rectified_keeps_nan():
    x, out = np.array([-1, 2, np.nan, 0, -np.inf, np.inf, -0.5, 0.5], np.float32), np.empty(8, np.float32)
    positive_part(x, out, (None,) * 8)
    np.testing.assert_array_equal(out, [0, 2, np.nan, 0, 0, np.inf, 0, 0.5])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_are_all_channels(dtype):
    for channels in range(1, 600):
        wide = filled_up(channels)
        blocks = blocks_for(wide, dtype)
        assert channels <= wide < channels + 8
        assert number_of(blocks) * len(blocks[0]) == wide
        assert len(blocks[0]) * np.dtype(dtype).itemsize <= 256
