import math
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kernels.smoothness import mean_entropy


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 3), st.integers(0, 10_000))
def test_entropy_node_by_node(degrees, heads, seed):
    rng = np.random.default_rng(seed)
    ptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    alpha = np.empty((ptr[-1], heads))
    for first, last in pairwise(ptr):
        scores = rng.standard_normal((last - first, heads))
        alpha[first:last] = np.exp(scores) / np.exp(scores).sum(axis=0)
    nodes = np.arange(0, len(degrees), 2)
    shares = [
        -sum(a * math.log(a) for a in alpha[ptr[v] : ptr[v + 1], h]) / math.log(degrees[v])
        for v in nodes
        for h in range(heads)
        if degrees[v] > 1
    ]
    found = mean_entropy(alpha, ptr, nodes)
    if shares:
        np.testing.assert_allclose(found, np.mean(shares), rtol=1e-12)
    else:
        assert math.isnan(found)


def test_a_coefficient_of_zero_has_no_entropy():
    assert mean_entropy(np.array([[1.0], [0.0]]), np.array([0, 2]), np.array([0])) == 0.0
