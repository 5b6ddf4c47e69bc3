"""Dot-product attention against a loop over nodes: sums, coefficients and all gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from equipoise.errors import GraphError
from equipoise.kernels import threads
from equipoise.kernels.csr import build_graph
from equipoise.nn.fused_transformer import _DotProductAttention, transformer_attention
from equipoise.nn.kernel_arrays import pad_channels


def attention_loop(graph, query, key, value, mask=None):
    """Sums and coefficients, one target after another."""
    rows, coefficients = [], []
    for v in range(graph.targets):
        edges = slice(int(graph.ptr[v]), int(graph.ptr[v + 1]))
        sources = graph.src[edges].tolist()
        alpha = ((key[sources] * query[v]).sum(dim=-1) / math.sqrt(query.shape[-1])).softmax(dim=0)
        weight = alpha if mask is None else alpha * mask[edges]
        rows.append((weight[..., None] * value[sources]).sum(dim=0))
        coefficients.append(alpha)
    return torch.stack(rows), torch.cat(coefficients)


@st.composite
def graphs(draw):
    """Bipartite graphs with duplicate edges, isolated nodes and hubs."""
    sources, targets = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    edges = draw(st.lists(st.tuples(st.integers(0, sources - 1), st.integers(0, targets - 1)), max_size=15))
    if draw(st.booleans()):
        edges += [(u, 0) for u in range(sources)] * 2
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    return build_graph(edge_index, (sources, targets), self_loops=False)


def random_graph(sources, targets, edges):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, nodes, (edges,), generator=generator) for nodes in (sources, targets)]
    return build_graph(torch.stack(rows), (sources, targets), self_loops=False)


heads, channels, seeds = st.integers(1, 8), st.integers(1, 9), st.integers(0, 999)


def random_inputs(graph, H, C, seed=0, dtype=torch.float64):
    """Queries, keys and values."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(nodes, H, C, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for nodes in (graph.targets, graph.sources, graph.sources)
    ]


def assert_agree(fast, slow, inputs, tolerance):
    """Compare outputs, and gradients for cotangents of both outputs."""
    results = []
    for outputs in (fast(*inputs), slow(*inputs)):
        cotangents = [torch.sin(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape) for out in outputs]
        results.append([*outputs, *torch.autograd.grad(outputs, inputs, cotangents, materialize_grads=True)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@given(graphs(), heads, channels, seeds, st.booleans())
def test_attention(dtype, tolerance, graph, H, C, seed, dropout):
    generator = torch.Generator().manual_seed(seed)
    mask = 2 * (torch.rand(graph.edges, H, generator=generator) < 0.5).to(dtype) if dropout else None

    def fast(*inputs):
        if mask is None:
            return transformer_attention(graph, *inputs)
        padded = [pad_channels(features) for features in inputs]
        out, alpha = _DotProductAttention.apply(graph, *padded, C**-0.5, mask)
        return out[..., :C], alpha

    assert_agree(
        fast,
        lambda *inputs: attention_loop(graph, *inputs, mask),
        random_inputs(graph, H, C, seed, dtype),
        tolerance,
    )


@pytest.mark.parametrize("C", [64, 200, 512])
def test_wide_features_in_several_blocks(C):
    graph = random_graph(30, 20, 80)
    inputs = random_inputs(graph, 2, C)
    assert_agree(
        lambda *inputs: transformer_attention(graph, *inputs),
        lambda *inputs: attention_loop(graph, *inputs),
        inputs,
        1e-10,
    )


@given(graphs(), st.integers(1, 3), seeds)
@settings(max_examples=5)
def test_first_and_second_derivatives(graph, C, seed):
    inputs = random_inputs(graph, 2, C, seed)
    for check in (gradcheck, gradgradcheck):
        assert check(lambda *inputs: transformer_attention(graph, *inputs), inputs)


@pytest.mark.parametrize("output", [0, 1])
def test_a_gradient_of_one_output_reaches_few_nodes(output):
    graph = random_graph(400, 400, 500)
    inputs = random_inputs(graph, 2, 8)
    outputs = (transformer_attention(graph, *inputs)[output], attention_loop(graph, *inputs)[output])
    results = [torch.autograd.grad(out[[3, 7], 1].sum(), inputs, materialize_grads=True) for out in outputs]
    for a, b in zip(*results, strict=True):
        assert int((a != 0).any(dim=2).any(dim=1).sum()) < 40
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_scores_do_not_overflow(scale, dtype):
    graph = random_graph(5, 5, 12)
    q, k, v = random_inputs(graph, 2, 4, dtype=dtype)
    out, alpha = transformer_attention(graph, scale * q, k, v)
    out.sum().backward()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in (out, alpha, q.grad, k.grad, v.grad))
    torch.testing.assert_close(out, attention_loop(graph, scale * q, k, v)[0])


def test_nan_propagates():
    graph = build_graph(torch.tensor([[0, 1], [0, 1]]), 2, self_loops=False)
    q, k, v = (features.detach() for features in random_inputs(graph, 1, 3))
    k[1, 0, 1] = float("nan")
    out, _ = transformer_attention(graph, q, k, v)
    assert bool(out[1].isnan().all())
    assert not bool(out[0].isnan().any())


@pytest.mark.parametrize("threads_used", [2, 3])
def test_results_do_not_depend_on_the_number_of_threads(threads_used, monkeypatch):
    graph = random_graph(900, 900, 4000)
    results = []
    for used in (1, threads_used):
        monkeypatch.setattr(threads, "MIN_PARALLEL_EDGES", 0)
        monkeypatch.setattr(torch, "get_num_threads", lambda used=used: used)
        inputs = random_inputs(graph, 2, 8, dtype=torch.float32)
        out, alpha = transformer_attention(graph, *inputs)
        (out.sum() + alpha.square().sum()).backward()
        results.append([leaf.grad for leaf in inputs])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_shapes_that_do_not_match_the_graph_are_errors():
    graph = build_graph(torch.zeros(2, 3, dtype=torch.long), (4, 2), self_loops=False)
    q, k = torch.randn(2, 1, 8), torch.randn(4, 1, 8)
    for arguments in ((k, k, k), (q, q, k), (q, k, q), (q, k, k[..., :4])):
        with pytest.raises(GraphError, match="has shape"):
            transformer_attention(graph, *arguments)
