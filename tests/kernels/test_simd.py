"""SIMD intrinsics against NumPy, with vector widths that are and are not powers of two."""

import numpy as np
import pytest

from equipoise.kernels.jit import jit
from equipoise.kernels.simd import (
    any_nonzero,
    broadcast,
    clamp_negative,
    fast_exp,
    horizontal_sum,
    load,
    num_blocks,
    padded_channels,
    store,
    vector_blocks,
    where_positive,
)


@jit
def arithmetic_kernel(x, y, out, start, width):
    a, b = load(x, start, width), load(y, start, width)
    store(out, start, a * b + broadcast(x, 3, width) * where_positive(a, b, a))
    return horizontal_sum(a), any_nonzero(a)


@jit
def relu_kernel(x, out, width):
    store(out, 0, clamp_negative(load(x, 0, width)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [8, 5])
def test_arithmetic(count, dtype):
    rng = np.random.default_rng(0)
    x, y, out = rng.standard_normal(20).astype(dtype), rng.standard_normal(20).astype(dtype), np.zeros(20, dtype)
    sum_, nonzero = arithmetic_kernel(x, y, out, 3, (None,) * count)
    written = slice(3, 3 + count)
    a, b = x[written], y[written]
    np.testing.assert_allclose(out[written], a * b + 3 * np.where(a > 0, b, a), rtol=1e-5)
    assert not out[:3].any()
    assert not out[3 + count :].any()
    np.testing.assert_allclose(sum_, a.sum(), rtol=1e-5)
    assert nonzero


def test_any_nonzero_of_zero_negative_zero_and_nan():
    x, y, out = np.zeros(8, np.float32), np.ones(8, np.float32), np.empty(8, np.float32)
    x[1] = -0.0
    assert not arithmetic_kernel(x, y, out, 0, (None,) * 8)[1]
    assert not out.any()  # where_positive is false at zero
    x[2] = np.nan
    assert arithmetic_kernel(x, y, out, 0, (None,) * 8)[1]


def test_clamp_negative_keeps_nan():
    x, out = np.array([-1, 2, np.nan, 0, -np.inf, np.inf, -0.5, 0.5], np.float32), np.empty(8, np.float32)
    relu_kernel(x, out, (None,) * 8)
    np.testing.assert_array_equal(out, [0, 2, np.nan, 0, 0, np.inf, 0, 0.5])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_cover_all_channels(dtype):
    for channels in range(1, 600):
        padded = padded_channels(channels)
        blocks = vector_blocks(padded, dtype)
        assert channels <= padded < channels + 8
        assert num_blocks(blocks) * len(blocks[0]) == padded
        assert len(blocks[0]) * np.dtype(dtype).itemsize <= 256


@jit
def exp_kernel(x):
    out = np.empty_like(x)
    for k in range(len(x)):
        out[k] = fast_exp(x[k])
    return out


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 3e-7), (np.float64, 1e-15)])
def test_fast_exp_for_nonpositive_arguments(dtype, tolerance):
    x = np.concatenate([-np.logspace(-9, np.log10(87), 20_000), [0.0, -1.0, -np.log(2) / 2]]).astype(dtype)
    np.testing.assert_allclose(exp_kernel(x), np.exp(x.astype(np.float64)), rtol=tolerance)


def test_fast_exp_underflows_to_almost_zero_and_keeps_nan():
    x = np.array([-88.0, -1e4, -np.inf, np.nan], np.float32)
    values = exp_kernel(x)
    assert (values[:3] < 2e-38).all()
    assert (values[:3] >= 0).all()
    assert np.isnan(values[3])
