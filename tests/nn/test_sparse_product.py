"""Sparse products against their reference implementation, and permutations: outputs and gradients of any order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from equipoise.kernels.csr import build_graph
from equipoise.nn.sparse_product import permute, weighted_sum
from tests.kernels import reference


@st.composite
def graphs(draw):
    """Bipartite graphs with isolated nodes and duplicate edges."""
    sources, targets = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    edge = st.tuples(st.integers(0, sources - 1), st.integers(0, targets - 1))
    edge_index = torch.tensor(draw(st.lists(edge, max_size=15)), dtype=torch.long).reshape(-1, 2).T
    return build_graph(edge_index, (sources, targets), self_loops=False)


def random(seed, *shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@given(graphs(), st.integers(1, 9), st.integers(0, 999))
def test_weighted_sum(dtype, tolerance, graph, C, seed):
    weight, z = random(seed, graph.edges, dtype=dtype), random(seed, graph.sources, C, dtype=dtype)
    results = []
    for function in (weighted_sum, reference.weighted_sum):
        out = function(graph, weight, z)
        cotangent = torch.sin(torch.arange(out.numel(), dtype=dtype)).reshape(out.shape)
        results.append([out, *torch.autograd.grad(out, (weight, z), cotangent)])
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


@given(graphs(), st.integers(0, 999))
@settings(max_examples=10)
def test_weighted_sum_can_be_differentiated_twice(graph, seed):
    inputs = random(seed, graph.edges), random(seed, graph.sources, 2)
    assert gradcheck(lambda weight, z: weighted_sum(graph, weight, z), inputs)
    assert gradgradcheck(lambda weight, z: weighted_sum(graph, weight, z), inputs)


@given(st.permutations(range(6)))
@settings(max_examples=10)
def test_permute(order):
    rows, order = random(0, 6, 2), torch.tensor(order)
    inverse = torch.argsort(order)
    assert torch.equal(permute(rows, order, inverse), rows[order])
    assert torch.equal(permute(permute(rows, order, inverse), inverse, order), rows)
    assert gradcheck(lambda rows: permute(rows, order, inverse), rows)
    assert gradgradcheck(lambda rows: permute(rows, order, inverse), rows)
