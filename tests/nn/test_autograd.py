"""Differentiable kernels against their reference implementations: outputs and all gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from equipoise.kernels import threads
from equipoise.kernels.csr import build_graph
from equipoise.nn import attention, autograd, kernel_arrays
from tests.kernels import reference


@st.composite
def graphs(draw):
    """Graphs with isolated nodes, self-loops, duplicate edges, and hubs."""
    nodes = draw(st.integers(1, 7))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=15))
    if draw(st.booleans()):
        edges += [(u, 0) for u in range(nodes)] * 2
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    return build_graph(edge_index, nodes, draw(st.booleans()))


heads, channels, seeds = st.integers(1, 8), st.integers(1, 9), st.integers(0, 999)
random_inputs = given(graphs(), heads, channels, seeds, st.booleans())


def leaves(seed, dtype, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def dropout_mask(graph, H, seed, dtype, with_dropout):
    if not with_dropout:
        return torch.empty(0, H, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * (torch.rand(graph.edges, H, generator=generator) < 0.5).to(dtype)


def assert_agree(fast, slow, inputs, tolerance):
    results = []
    for function in (fast, slow):
        out = function(*inputs)
        cotangent = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape)
        results.append([out, *torch.autograd.grad(out, inputs, cotangent)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


pad = kernel_arrays.pad_channels


def apply(function, graph, inputs, mask, relu=False):
    """The public function with a given dropout mask."""
    C, options = inputs[0].shape[-1], autograd.AttentionOptions(0.2, mask, relu)
    if function is autograd.GATv2Function:
        s, t, a = (None if tensor is None else pad(tensor) for tensor in inputs)
        return function.apply(graph, s, t, None, a, options)[0][..., :C]
    z, p, q = inputs
    return function.apply(graph, pad(z), p, q, None, options)[0][..., :C]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
class TestAgainstReference:
    @random_inputs
    def test_gatv2(self, dtype, tolerance, graph, H, C, seed, with_dropout):
        inputs = leaves(seed, dtype, (graph.targets, H, C), (graph.targets, H, C), (H, C))
        mask = dropout_mask(graph, H, seed, dtype, with_dropout)
        assert_agree(
            lambda s, t, a: apply(autograd.GATv2Function, graph, (s, t, a), mask),
            lambda s, t, a: reference.gatv2_attention(graph, s, t, a, 0.2, mask),
            inputs,
            tolerance,
        )

    @random_inputs
    def test_gatv2_shared_with_relu(self, dtype, tolerance, graph, H, C, seed, with_dropout):
        inputs = leaves(seed, dtype, (graph.targets, H, C), (H, C))
        mask = dropout_mask(graph, H, seed, dtype, with_dropout)
        assert_agree(
            lambda z, a: apply(autograd.GATv2Function, graph, (z, None, a), mask, relu=True),
            lambda z, a: reference.gatv2_attention(graph, z, z, a, 0.2, mask).relu(),
            inputs,
            tolerance,
        )

    @random_inputs
    def test_gat_with_relu(self, dtype, tolerance, graph, H, C, seed, with_dropout):
        inputs = leaves(seed, dtype, (graph.targets, H, C), (graph.targets, H), (graph.targets, H))
        mask = dropout_mask(graph, H, seed, dtype, with_dropout)
        assert_agree(
            lambda z, p, q: apply(autograd.GATFunction, graph, (z, p, q), mask, relu=True),
            lambda z, p, q: reference.gat_attention(graph, z, p, q, 0.2, mask).relu(),
            inputs,
            tolerance,
        )

    @random_inputs
    def test_gat(self, dtype, tolerance, graph, H, C, seed, with_dropout):
        inputs = leaves(seed, dtype, (graph.targets, H, C), (graph.targets, H), (graph.targets, H))
        mask = dropout_mask(graph, H, seed, dtype, with_dropout)
        assert_agree(
            lambda z, p, q: apply(autograd.GATFunction, graph, (z, p, q), mask),
            lambda z, p, q: reference.gat_attention(graph, z, p, q, 0.2, mask),
            inputs,
            tolerance,
        )


@pytest.mark.parametrize("C", [64, 128, 200, 512])
def test_wide_features_in_several_blocks(C):
    graph = random_graph(30, 120)
    inputs = leaves(0, torch.float64, (30, 2, C), (30, 2, C), (2, C))
    no_mask = torch.empty(0, dtype=torch.float64)
    assert_agree(
        lambda s, t, a: attention.gatv2_attention(graph, s, t, a, 0.2)[0],
        lambda s, t, a: reference.gatv2_attention(graph, s, t, a, 0.2, no_mask),
        inputs,
        1e-10,
    )
    assert_agree(
        lambda z: attention.gat_attention(graph, z, z[..., 0], z[..., 1], 0.2)[0],
        lambda z: reference.gat_attention(graph, z, z[..., 0], z[..., 1], 0.2, no_mask),
        inputs[:1],
        1e-10,
    )


def undirected_edges(nodes, edges):
    generator = torch.Generator().manual_seed(0)
    one = torch.randint(0, nodes, (2, edges), generator=generator)
    return torch.cat([one, one.flip(0)], dim=1)


@given(st.integers(1, 9), st.integers(0, 12), st.booleans(), heads, channels, seeds, st.booleans(), st.booleans())
def test_backward_pass_of_symmetric_graphs(nodes, edges, loops, H, C, seed, with_dropout, relu):
    graph = build_graph(undirected_edges(nodes, edges), nodes, loops)
    assert graph.symmetric
    z, a = leaves(seed, torch.float64, (nodes, H, C), (H, C))
    mask = dropout_mask(graph, H, seed, torch.float64, with_dropout)

    def slow(z, a):
        out = reference.gatv2_attention(graph, z, z, a, 0.2, mask)
        return out.relu() if relu else out

    def fast(z, a):
        return apply(autograd.GATv2Function, graph, (z, None, a), mask, relu)

    assert_agree(fast, slow, [z, a], 1e-10)


def test_directed_edges_are_not_symmetric():
    assert not build_graph(torch.tensor([[0, 1], [1, 2]]), 3, True).symmetric
    assert not build_graph(torch.tensor([[0, 1, 0], [1, 0, 1]]), 2, True).symmetric  # two edges 0 → 1, one edge back


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["gatv2", "gat"])
def test_backward_pass_skips_nodes_without_gradient(kind, symmetric):
    """Two layers with ReLUs and a gradient at two nodes only."""
    graph = build_graph(undirected_edges(400, 250), 400, True) if symmetric else random_graph(400, 500)
    z = leaves(0, torch.float64, (400, 2, 8))[0]
    a, no_mask = leaves(1, torch.float64, (2, 8))[0], torch.empty(0, dtype=torch.float64)

    def layer(module, h, *last):
        if kind == "gatv2":
            target = None if symmetric and module is attention else h
            out = module.gatv2_attention(graph, h, target, a, 0.2, *last)
        else:
            out = module.gat_attention(graph, h, h[..., 0], h[..., 1], 0.2, *last)
        return out[0] if module is attention else out

    fused = layer(attention, layer(attention, z, 0.0, True), 0.0, True)
    expected = layer(reference, layer(reference, z, no_mask).relu(), no_mask).relu()
    gradients = [torch.autograd.grad(out[[3, 7]].sum(), z)[0] for out in (fused, expected)]
    assert 0 < int((gradients[0].abs().sum(dim=(1, 2)) > 0).sum()) < 40
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@given(graphs(), st.integers(1, 3), st.integers(1, 3), seeds)
@settings(max_examples=10)
def test_gradcheck(graph, H, C, seed):
    s, t, a = leaves(seed, torch.float64, (graph.targets, H, C), (graph.targets, H, C), (H, C))
    assert gradcheck(lambda s, t, a: attention.gatv2_attention(graph, s, t, a, 0.2, 0.0), (s, t, a))
    z, p, q = leaves(seed, torch.float64, (graph.targets, H, C), (graph.targets, H), (graph.targets, H))
    assert gradcheck(lambda z, p, q: attention.gat_attention(graph, z, p, q, 0.2, 0.0), (z, p, q))


def random_graph(nodes, edges):
    generator = torch.Generator().manual_seed(0)
    return build_graph(torch.randint(0, nodes, (2, edges), generator=generator), nodes, True)


def ring(nodes):
    index = torch.arange(nodes)
    return build_graph(torch.stack([index, (index + 1) % nodes]), nodes, True)


@pytest.mark.parametrize("scale", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_scores_do_not_overflow(scale, dtype):
    graph = ring(5)
    s, t, a = leaves(0, dtype, (5, 2, 4), (5, 2, 4), (2, 4))
    out, _ = attention.gatv2_attention(graph, s, t, scale * a, 0.2, 0.0)
    out.sum().backward()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in (out, s.grad, t.grad, a.grad))
    torch.testing.assert_close(out, reference.gatv2_attention(graph, s, t, scale * a, 0.2, torch.empty(0, 2)))


def test_nan_propagates():
    graph = ring(4)
    s, t, a = (leaf.detach() for leaf in leaves(0, torch.float32, (4, 1, 3), (4, 1, 3), (1, 3)))
    s[2, 0, 1] = float("nan")
    out, _ = attention.gatv2_attention(graph, s, t, a, 0.2, 0.0)
    assert bool(out[2].isnan().any())
    assert not bool(out[0].isnan().any())


@pytest.mark.parametrize("threads_used", [1, 2, 3])
def test_results_are_reproducible_for_a_number_of_threads(threads_used, monkeypatch):
    monkeypatch.setattr(threads, "MIN_PARALLEL_EDGES", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads_used)
    graph = random_graph(900, 4000)
    assert (len(threads.node_ranges(graph.ptr)) > 1) == (threads_used > 1)
    results = []
    for _ in range(3):
        inputs = leaves(0, torch.float32, (900, 2, 8), (900, 2, 8), (2, 8))
        attention.gatv2_attention(graph, *inputs, 0.2, 0.0)[0].sum().backward()
        results.append([leaf.grad for leaf in inputs])
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
    inputs = leaves(0, torch.float32, (900, 2, 8), (900, 2, 8), (2, 8))
    reference.gatv2_attention(graph, *inputs, 0.2, torch.empty(0, 2)).sum().backward()
    for a, b in zip(results[0], inputs, strict=True):
        torch.testing.assert_close(a, b.grad, rtol=1e-4, atol=1e-5)
