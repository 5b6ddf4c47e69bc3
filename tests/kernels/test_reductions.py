import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kernels.reductions import add_norms, add_products, add_step, mean_entropy


def random_pair(seed, count, dtype):
    return np.random.default_rng(seed).standard_normal((2, count)).astype(dtype)


@given(st.integers(0, 10_000), st.integers(0, 40), st.sampled_from(["f4", "f8"]))
def test_norms_and_steps_are_added_to_the_sums(seed, count, dtype):
    w, g = random_pair(seed, count, dtype)
    norms, step = np.full(2, 3.0), np.full(2, 3.0)
    add_norms(w, g, norms)
    add_step(w, g, step)
    w64, g64 = w.astype("f8"), g.astype("f8")
    np.testing.assert_allclose(norms, [3 + w64 @ w64, 3 + g64 @ g64], rtol=1e-12)
    np.testing.assert_allclose(step, [3 + g64 @ g64, 3 + (w64 - g64) @ (w64 - g64)], rtol=1e-12)


@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([-1, 1]),
)
def test_products_per_neuron(seed, outer, neurons, start, remainder, inner, sign):
    length = start + neurons + remainder
    w, g = random_pair(seed, outer * length * inner, "f8")
    sums = np.full((4, neurons), 0.5)
    add_products(w, g, length, start, inner, sign, sums)
    for i in range(neurons):
        entries = [(o * length + start + i) * inner + k for o in range(outer) for k in range(inner)]
        ww, wg, gg = w[entries] @ w[entries], w[entries] @ g[entries], g[entries] @ g[entries]
        assert sums[:, i] - 0.5 == pytest.approx([sign * ww, sign * wg, sign * gg, abs(wg)], abs=1e-12)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 3), st.integers(0, 10_000))
def test_entropy_per_node(degrees, heads, seed):
    rng = np.random.default_rng(seed)
    ptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    alpha = np.empty((ptr[-1], heads))
    for first, last in pairwise(ptr):
        scores = rng.standard_normal((last - first, heads))
        alpha[first:last] = np.exp(scores) / np.exp(scores).sum(axis=0)
    nodes = np.arange(0, len(degrees), 2)
    expected = [
        -sum(a * math.log(a) for a in alpha[ptr[v] : ptr[v + 1], h]) / math.log(degrees[v])
        for v in nodes
        for h in range(heads)
        if degrees[v] > 1
    ]
    entropy = mean_entropy(alpha, ptr, nodes)
    if expected:
        np.testing.assert_allclose(entropy, np.mean(expected), rtol=1e-12)
    else:
        assert math.isnan(entropy)


def test_zero_coefficients_contribute_no_entropy():
    assert mean_entropy(np.array([[1.0], [0.0]]), np.array([0, 2]), np.array([0])) == 0.0
