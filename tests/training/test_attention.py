import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, TransformerConv
from torch_geometric.utils import remove_self_loops, softmax

from equipoise.nn.fused_convs import FusedGATConv, FusedGATv2Conv
from equipoise.nn.lipschitz_gat import LipschitzGATConv
from equipoise.nn.omega_gat import OmegaGATConv
from equipoise.training.attention import SCORE_FUNCTIONS, Neighbourhoods, attention_entropy, attention_scores
from tests.networks import random_graph, random_layer

NODES = 9


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("add_self_loops", [True, False])
@pytest.mark.parametrize("kind", [GATv2Conv, FusedGATv2Conv, OmegaGATConv, GATConv, FusedGATConv, LipschitzGATConv])
def test_coefficients_equal_those_of_pyg(kind, heads, add_self_loops):
    x, edge_index = random_graph(0, count=NODES, edges=20)
    edge_index = remove_self_loops(edge_index)[0].unique(dim=1)
    conv = random_layer(kind, seed=1, heads=heads, add_self_loops=add_self_loops, dropout=0.5)
    _, (edges, alpha) = conv.eval()(x, edge_index, return_attention_weights=True)
    conv.train()
    scores, target = attention_scores(conv, x, edge_index)
    torch.testing.assert_close(target, edges[1])
    torch.testing.assert_close(softmax(scores, target, num_nodes=NODES), alpha)
    assert conv.training


def test_separate_weights_of_gatv2():
    x, edge_index = random_graph(1, count=NODES, edges=20)
    edge_index = remove_self_loops(edge_index)[0]
    conv = random_layer(GATv2Conv, seed=1, share_weights=False)
    _, (_, alpha) = conv(x, edge_index, return_attention_weights=True)
    scores, target = attention_scores(conv, x, edge_index)
    torch.testing.assert_close(softmax(scores, target, num_nodes=NODES), alpha)


def test_layers_without_a_score_function():
    x, edge_index = random_graph(2, count=NODES, edges=20)
    conv = random_layer(TransformerConv, seed=1, heads=2)
    assert TransformerConv not in SCORE_FUNCTIONS
    _, (_, alpha) = conv(x, edge_index, return_attention_weights=True)
    scores, target = attention_scores(conv, x, edge_index)
    torch.testing.assert_close(softmax(scores, target, num_nodes=NODES), alpha)
    assert attention_scores(random_layer(GCNConv, seed=1), x, edge_index) is None


@pytest.mark.parametrize("max_targets", [1, 3, 7, 50])
def test_sampled_neighbourhoods_are_complete(max_targets):
    num_nodes, edge_index = 20, torch.randint(0, 20, (2, 60))
    sample = Neighbourhoods.sample(edge_index, num_nodes, max_targets)
    sampled = sample.nodes[: sample.num_targets].tolist()
    assert 0 < len(sampled) <= min(max_targets, num_nodes)
    assert sample.nodes.unique().numel() == sample.nodes.numel()
    edges = sorted(map(tuple, sample.nodes[sample.edge_index].t().tolist()))
    expected = sorted((j, i) for j, i in edge_index.t().tolist() if i in sampled and i != j)
    assert edges == expected


@given(st.integers(0, 10_000), st.integers(1, 25))
def test_entropy_against_a_loop_over_nodes(seed, edges):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, NODES, (edges,), generator=generator)
    scores = torch.randn(edges, 2, generator=generator, dtype=torch.float64)
    expected = []
    for i in range(NODES):
        node_scores = scores[target == i]
        if len(node_scores) > 1:
            alpha = node_scores.softmax(dim=0)
            expected.append(-(alpha * alpha.log()).sum(dim=0) / math.log(len(node_scores)))
    entropy = attention_entropy(scores, target, NODES)
    if expected:
        torch.testing.assert_close(entropy, torch.stack(expected).mean(dim=0))
    else:
        assert entropy.isnan().all()


def test_entropy_of_uniform_and_one_hot_attention():
    target = torch.tensor([0, 0, 0])
    assert float(attention_entropy(torch.zeros(3, 1), target, 1)) == pytest.approx(1.0)
    assert float(attention_entropy(torch.tensor([[100.0], [0.0], [0.0]]), target, 1)) == pytest.approx(0.0, abs=1e-6)
