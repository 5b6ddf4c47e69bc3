"""The kernels against their plain twins: outputs and all gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from equipoise.kernels import reference, threads
from equipoise.kernels.csr import build_graph
from equipoise.nn import functions


@st.composite
def graphs(draw):
    """Empty neighbourhoods, single nodes, loops, double edges, and a hub with all edges."""
    nodes = draw(st.integers(1, 7))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=15))
    if draw(st.booleans()):
        edges += [(u, 0) for u in range(nodes)] * 2
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    return build_graph(edge_index, nodes, draw(st.booleans()))


heads, channels, seeds = st.integers(1, 8), st.integers(1, 9), st.integers(0, 999)
cases = given(graphs(), heads, channels, seeds, st.booleans())


def leaves(seed, dtype, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def kept(graph, H, seed, dtype, dropped):
    if not dropped:
        return torch.empty(0, H, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * (torch.rand(graph.edges, H, generator=generator) < 0.5).to(dtype)


def agree(fast, slow, inputs, tolerance):
    results = []
    for function in (fast, slow):
        out = function(*inputs)
        cotangent = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape)
        results.append([out, *torch.autograd.grad(out, inputs, cotangent)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


wide = functions._filled


def attention(function, graph, inputs, k, relu=False):
    """As the public functions have it, with dropout's choice given."""
    C = inputs[0].shape[-1]
    filled = [wide(t) if function is functions._GATv2 or t is inputs[0] else t for t in inputs]
    return function.apply(graph, *filled, 0.2, k, relu)[..., :C]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
class TestAgainstTheTwin:
    @cases
    def test_gatv2(self, dtype, tolerance, graph, H, C, seed, dropped):
        inputs = leaves(seed, dtype, (graph.nodes, H, C), (graph.nodes, H, C), (H, C))
        k = kept(graph, H, seed, dtype, dropped)
        agree(
            lambda s, t, a: attention(functions._GATv2, graph, (s, t, a), k),
            lambda s, t, a: reference.gatv2_attention(graph, s, t, a, 0.2, k),
            inputs,
            tolerance,
        )

    @cases
    def test_gatv2_shared_with_relu(self, dtype, tolerance, graph, H, C, seed, dropped):
        inputs = leaves(seed, dtype, (graph.nodes, H, C), (H, C))
        k = kept(graph, H, seed, dtype, dropped)
        agree(
            lambda z, a: functions._GATv2.apply(graph, wide(z), None, wide(a), 0.2, k, True)[..., :C],
            lambda z, a: reference.gatv2_attention(graph, z, z, a, 0.2, k).relu(),
            inputs,
            tolerance,
        )

    @cases
    def test_gat_with_relu(self, dtype, tolerance, graph, H, C, seed, dropped):
        inputs = leaves(seed, dtype, (graph.nodes, H, C), (graph.nodes, H), (graph.nodes, H))
        k = kept(graph, H, seed, dtype, dropped)
        agree(
            lambda z, p, q: attention(functions._GAT, graph, (z, p, q), k, relu=True),
            lambda z, p, q: reference.gat_attention(graph, z, p, q, 0.2, k).relu(),
            inputs,
            tolerance,
        )

    @cases
    def test_gat(self, dtype, tolerance, graph, H, C, seed, dropped):
        inputs = leaves(seed, dtype, (graph.nodes, H, C), (graph.nodes, H), (graph.nodes, H))
        k = kept(graph, H, seed, dtype, dropped)
        agree(
            lambda z, p, q: attention(functions._GAT, graph, (z, p, q), k),
            lambda z, p, q: reference.gat_attention(graph, z, p, q, 0.2, k),
            inputs,
            tolerance,
        )

    @given(graphs(), channels, seeds)
    def test_weighted_sum(self, dtype, tolerance, graph, C, seed):
        weight, z = leaves(seed, dtype, (graph.edges,), (graph.nodes, C))
        agree(
            lambda z: functions.weighted_sum(graph, weight.detach(), z),
            lambda z: reference.weighted_sum(graph, weight.detach(), z),
            [z],
            tolerance,
        )


@pytest.mark.parametrize("C", [64, 128, 200, 512])
def test_wide_features_in_several_blocks(C):
    graph = random_graph(30, 120)
    inputs = leaves(0, torch.float64, (30, 2, C), (30, 2, C), (2, C))
    none = torch.empty(0, dtype=torch.float64)
    agree(
        lambda s, t, a: functions.gatv2_attention(graph, s, t, a, 0.2),
        lambda s, t, a: reference.gatv2_attention(graph, s, t, a, 0.2, none),
        inputs,
        1e-10,
    )
    agree(
        lambda z: functions.gat_attention(graph, z, z[..., 0], z[..., 1], 0.2),
        lambda z: reference.gat_attention(graph, z, z[..., 0], z[..., 1], 0.2, none),
        inputs[:1],
        1e-10,
    )


def both_directions(nodes, edges):
    generator = torch.Generator().manual_seed(0)
    one = torch.randint(0, nodes, (2, edges), generator=generator)
    return torch.cat([one, one.flip(0)], dim=1)


@given(st.integers(1, 9), st.integers(0, 12), st.booleans(), heads, channels, seeds, st.booleans(), st.booleans())
def test_symmetric_graphs_have_a_way_back_of_their_own(nodes, edges, loops, H, C, seed, dropped, relu):
    graph = build_graph(both_directions(nodes, edges), nodes, loops)
    assert graph.symmetric
    z, a = leaves(seed, torch.float64, (nodes, H, C), (H, C))
    k = kept(graph, H, seed, torch.float64, dropped)

    def slow(z, a):
        out = reference.gatv2_attention(graph, z, z, a, 0.2, k)
        return out.relu() if relu else out

    def fast(z, a):
        return functions._GATv2.apply(graph, wide(z), None, wide(a), 0.2, k, relu)[..., :C]

    agree(fast, slow, [z, a], 1e-10)


def test_one_way_edges_are_not_symmetric():
    assert not build_graph(torch.tensor([[0, 1], [1, 2]]), 3, True).symmetric
    assert not build_graph(torch.tensor([[0, 1, 0], [1, 0, 1]]), 2, True).symmetric  # twice there, once back


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["gatv2", "gat"])
def test_nodes_without_a_gradient_are_left_out_of_the_way_back(kind, symmetric):
    """A gradient at two nodes only, over two layers with ReLUs."""
    graph = build_graph(both_directions(400, 250), 400, True) if symmetric else random_graph(400, 500)
    z = leaves(0, torch.float64, (400, 2, 8))[0]
    a, none = leaves(1, torch.float64, (2, 8))[0], torch.empty(0, dtype=torch.float64)

    def layer(module, h, *last):
        if kind == "gatv2":
            target = None if symmetric and module is functions else h
            return module.gatv2_attention(graph, h, target, a, 0.2, *last)
        return module.gat_attention(graph, h, h[..., 0], h[..., 1], 0.2, *last)

    fused = layer(functions, layer(functions, z, 0.0, True), 0.0, True)
    plain = layer(reference, layer(reference, z, none).relu(), none).relu()
    gradients = [torch.autograd.grad(out[[3, 7]].sum(), z)[0] for out in (fused, plain)]
    assert 0 < int((gradients[0].abs().sum(dim=(1, 2)) > 0).sum()) < 40
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@given(graphs(), st.integers(1, 3), st.integers(1, 3), seeds)
@settings(max_examples=10)
def test_gradcheck(graph, H, C, seed):
    s, t, a = leaves(seed, torch.float64, (graph.nodes, H, C), (graph.nodes, H, C), (H, C))
    assert gradcheck(lambda s, t, a: functions.gatv2_attention(graph, s, t, a, 0.2, 0.0), (s, t, a))
    z, p, q = leaves(seed, torch.float64, (graph.nodes, H, C), (graph.nodes, H), (graph.nodes, H))
    assert gradcheck(lambda z, p, q: functions.gat_attention(graph, z, p, q, 0.2, 0.0), (z, p, q))


def random_graph(nodes, edges):
    generator = torch.Generator().manual_seed(0)
    return build_graph(torch.randint(0, nodes, (2, edges), generator=generator), nodes, True)


def ring(nodes):
    around = torch.arange(nodes)
    return build_graph(torch.stack([around, (around + 1) % nodes]), nodes, True)


@pytest.mark.parametrize("size", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_scores_do_not_overflow(size, dtype):
    graph = ring(5)
    s, t, a = leaves(0, dtype, (5, 2, 4), (5, 2, 4), (2, 4))
    out = functions.gatv2_attention(graph, s, t, size * a, 0.2, 0.0)
    out.sum().backward()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in (out, s.grad, t.grad, a.grad))
    torch.testing.assert_close(out, reference.gatv2_attention(graph, s, t, size * a, 0.2, torch.empty(0, 2)))


def test_nan_is_not_swallowed():
    graph = ring(4)
    s, t, a = (leaf.detach() for leaf in leaves(0, torch.float32, (4, 1, 3), (4, 1, 3), (1, 3)))
    s[2, 0, 1] = float("nan")
    out = functions.gatv2_attention(graph, s, t, a, 0.2, 0.0)
    assert bool(out[2].isnan().any())
    assert not bool(out[0].isnan().any())


@pytest.mark.parametrize("threads_used", [1, 2, 3])
def test_the_same_numbers_to_the_bit_for_a_number_of_threads(threads_used, monkeypatch):
    monkeypatch.setattr(threads, "SMALL", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads_used)
    graph = random_graph(900, 4000)
    assert (len(threads.parts_of(graph.ptr)) > 1) == (threads_used > 1)
    results = []
    for _ in range(3):
        inputs = leaves(0, torch.float32, (900, 2, 8), (900, 2, 8), (2, 8))
        functions.gatv2_attention(graph, *inputs, 0.2, 0.0).sum().backward()
        results.append([leaf.grad for leaf in inputs])
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
    inputs = leaves(0, torch.float32, (900, 2, 8), (900, 2, 8), (2, 8))
    reference.gatv2_attention(graph, *inputs, 0.2, torch.empty(0, 2)).sum().backward()
    for a, b in zip(results[0], inputs, strict=True):
        torch.testing.assert_close(a, b.grad, rtol=1e-4, atol=1e-5)
