import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kernels.weights import add_norms, add_products, add_step


def drawn(seed, count, dtype):
    return np.random.default_rng(seed).standard_normal((2, count)).astype(dtype)


@given(st.integers(0, 10_000), st.integers(0, 40), st.sampled_from(["f4", "f8"]))
def test_norms_and_steps_are_added_to_what_is_there(seed, count, dtype):
    w, g = drawn(seed, count, dtype)
    norms, step = np.full(2, 3.0), np.full(2, 3.0)
    add_norms(w, g, norms)
    add_step(w, g, step)
    wide, other = w.astype("f8"), g.astype("f8")
    np.testing.assert_allclose(norms, [3 + wide @ wide, 3 + other @ other], rtol=1e-12)
    np.testing.assert_allclose(step, [3 + other @ other, 3 + (wide - other) @ (wide - other)], rtol=1e-12)


@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([-1, 1]),
)
def test_products_neuron_by_neuron(seed, outer, neurons, start, rest, inner, sign):
    length = start + neurons + rest
    w, g = drawn(seed, outer * length * inner, "f8")
    sums = np.full((4, neurons), 0.5)
    add_products(w, g, length, start, inner, sign, sums)
    for i in range(neurons):
        mine = [(o * length + start + i) * inner + k for o in range(outer) for k in range(inner)]
        ww, wg, gg = w[mine] @ w[mine], w[mine] @ g[mine], g[mine] @ g[mine]
        assert sums[:, i] - 0.5 == pytest.approx([sign * ww, sign * wg, sign * gg, abs(wg)], abs=1e-12)
