import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.train.smoothness import attention_entropy, smoothness

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
    assert smoothness(h, edge_index).dirichlet == pytest.approx(total / NODES, rel=1e-12)
    assert smoothness(h, edge_index, targets=2).dirichlet == pytest.approx(total / 2, rel=1e-12)


@given(graphs())
def test_mean_average_distance_node_by_node(drawn):
    h, edge_index, _ = drawn
    means = []
    for i in range(NODES):
        near = neighbours(edge_index, i)
        if near:
            cosines = [float(torch.cosine_similarity(h[i], h[j], dim=0)) for j in near]
            means.append(sum(1 - cosine for cosine in cosines) / len(near))
    assert smoothness(h, edge_index).mad == pytest.approx(sum(means) / len(means), abs=1e-12)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_numbers_and_a_part_of_a_wider_array(dtype):
    wide, edge_index = torch.randn(NODES, 8).to(dtype), torch.randint(0, NODES, (2, 12))
    expected = smoothness(wide[:, :3].double().contiguous(), edge_index)
    assert smoothness(wide[:, :3], edge_index) == pytest.approx(expected, rel=1e-6)


def test_nodes_without_a_signal_are_alike():
    edge_index = torch.tensor([[0, 1], [1, 0]])
    assert smoothness(torch.zeros(2, 3), edge_index).mad == 0.0
    same_direction = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
    assert smoothness(same_direction, edge_index).mad == pytest.approx(0.0, abs=1e-12)
    assert smoothness(same_direction, edge_index).dirichlet > 100


def test_uniform_attention_is_1_and_one_neighbour_0():
    target = torch.tensor([0, 0, 0])
    assert float(attention_entropy(torch.zeros(3, 1), target, 1)) == pytest.approx(1.0)
    assert float(attention_entropy(torch.tensor([[100.0], [0.0], [0.0]]), target, 1)) == pytest.approx(0.0, abs=1e-6)
