"""The matrix-product kernels against NumPy, for any number of rows, columns and zero rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kernels.matmul import AVX2_BYTES, GRADIENT_CHUNK, MULTIPLY_CHUNK, add_weight_gradient, multiply
from equipoise.kernels.simd import vector_blocks

COLUMNS = (8, 24, 64, 128)
ROWS = st.one_of(st.integers(0, 20), st.integers(GRADIENT_CHUNK - 1, GRADIENT_CHUNK + 7), st.just(MULTIPLY_CHUNK + 5))


@st.composite
def factors(draw, inner):
    """A random x (rows, inner), a number of columns, and which rows of x may be nonzero."""
    rows, k, columns = draw(ROWS), draw(inner), draw(st.sampled_from(COLUMNS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    nonzero = rng.random(rows) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    return rng, rng.standard_normal((rows, k)) * nonzero[:, None], columns, nonzero


@given(factors(st.integers(1, 9)), st.booleans())
def test_multiply(case, skip):
    rng, x, columns, nonzero = case
    W, out = rng.standard_normal((x.shape[1], columns)), np.full((len(x), columns), np.nan)
    flags = nonzero if skip else np.empty(0, np.bool_)
    multiply(0, len(x), x.ravel(), W.ravel(), out.reshape(-1), flags, x.shape[1], blocks(columns))
    np.testing.assert_allclose(out, x @ W, rtol=1e-12, atol=1e-13)


@given(factors(st.sampled_from([4, 8, 12])), st.booleans())
def test_weight_gradient_is_added(case, skip):
    rng, dz, inputs, nonzero = case
    x, before = rng.standard_normal((len(dz), inputs)), rng.standard_normal((dz.shape[1], inputs))
    flags, out = nonzero if skip else np.empty(0, np.bool_), before.copy()
    add_weight_gradient(0, len(x), dz.ravel(), x.ravel(), flags, dz.shape[1], blocks(inputs), out.reshape(-1))
    np.testing.assert_allclose(out, before + dz.T @ x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("lo", "hi"), [(0, 0), (3, 17), (250, 300)])
def test_a_range_of_rows_leaves_the_others_alone(lo, hi):
    rng = np.random.default_rng(0)
    x, W, out = rng.standard_normal((300, 5)), rng.standard_normal((5, 8)), np.full((300, 8), 7.0)
    multiply(lo, hi, x.ravel(), W.ravel(), out.reshape(-1), np.empty(0, np.bool_), 5, blocks(8))
    np.testing.assert_allclose(out[lo:hi], (x @ W)[lo:hi])
    assert (out[:lo] == 7).all()
    assert (out[hi:] == 7).all()


def test_skipped_rows_change_no_bit_of_the_gradient():
    rng = np.random.default_rng(0)
    nonzero = rng.random(500) < 0.4
    dz = (rng.standard_normal((500, 8)) * nonzero[:, None]).astype(np.float32)
    x, results = rng.standard_normal((500, 64)).astype(np.float32), []
    for flags in (np.empty(0, np.bool_), nonzero):
        out = np.zeros(8 * 64, np.float32)
        add_weight_gradient(0, 500, dz.ravel(), x.ravel(), flags, 8, vector_blocks(64, "f4", AVX2_BYTES), out)
        results.append(out)
    assert np.array_equal(*results)


def blocks(columns):
    return vector_blocks(columns, "f8", AVX2_BYTES)
