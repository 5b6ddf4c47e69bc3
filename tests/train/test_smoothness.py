import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.train.smoothness import attention_entropy, dirichlet_energy, mean_average_distance

NODES = 7


@st.composite
def graphs(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    edges = draw(st.integers(1, 25))
    h = torch.randn(NODES, 3, generator=generator, dtype=torch.float64)
    return h, torch.randint(0, NODES, (2, edges), generator=generator), generator


def neighbours(edge_index, i):
    return [j for j, target in edge_index.t().tolist() if target == i]


@given(graphs())
def test_dirichlet_energy_node_by_node(drawn):
    h, edge_index, _ = drawn
    total = sum(float((h[i] - h[j]).pow(2).sum()) for i in range(NODES) for j in neighbours(edge_index, i))
    assert float(dirichlet_energy(h, edge_index)) == pytest.approx(total / NODES, rel=1e-12)
    assert float(dirichlet_energy(h, edge_index, targets=2)) == pytest.approx(total / 2, rel=1e-12)


@given(graphs())
def test_mean_average_distance_node_by_node(drawn):
    h, edge_index, _ = drawn
    means = []
    for i in range(NODES):
        near = neighbours(edge_index, i)
        if near:
            cosines = [float(torch.cosine_similarity(h[i], h[j], dim=0)) for j in near]
            means.append(sum(1 - cosine for cosine in cosines) / len(near))
    assert float(mean_average_distance(h, edge_index)) == pytest.approx(sum(means) / len(means), abs=1e-12)


@given(graphs())
def test_entropy_node_by_node(drawn):
    _, edge_index, generator = drawn
    scores = torch.randn(edge_index.shape[1], 2, generator=generator, dtype=torch.float64)
    shares = []
    for i in range(NODES):
        mine = scores[edge_index[1] == i]
        if len(mine) > 1:
            alpha = mine.softmax(dim=0)
            shares.append(-(alpha * alpha.log()).sum(dim=0) / math.log(len(mine)))
    found = attention_entropy(scores, edge_index[1], NODES)
    if shares:
        torch.testing.assert_close(found, torch.stack(shares).mean(dim=0))
    else:
        assert found.isnan().all()


def test_several_layers_at_once():
    h, edge_index = torch.randn(4, NODES, 3), torch.randint(0, NODES, (2, 12))
    for rule in (dirichlet_energy, mean_average_distance):
        torch.testing.assert_close(rule(h, edge_index), torch.stack([rule(one, edge_index) for one in h]))


def test_nodes_without_a_signal_are_alike():
    edge_index = torch.tensor([[0, 1], [1, 0]])
    assert float(mean_average_distance(torch.zeros(2, 3), edge_index)) == 0.0
    same_direction = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
    assert float(mean_average_distance(same_direction, edge_index)) == pytest.approx(0.0, abs=1e-12)
    assert float(dirichlet_energy(same_direction, edge_index)) > 100


def test_uniform_attention_is_1_and_one_neighbour_0():
    target = torch.tensor([0, 0, 0])
    assert float(attention_entropy(torch.zeros(3, 1), target, 1)) == pytest.approx(1.0)
    assert float(attention_entropy(torch.tensor([[100.0], [0.0], [0.0]]), target, 1)) == pytest.approx(0.0, abs=1e-6)
