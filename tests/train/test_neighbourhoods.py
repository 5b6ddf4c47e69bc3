import pytest
import torch

from equipoise.train.neighbourhoods import Neighbourhoods


@pytest.mark.parametrize("most", [1, 3, 7, 50])
def test_neighbourhoods_are_whole(most):
    count, edge_index = 20, torch.randint(0, 20, (2, 60))
    near = Neighbourhoods.of(edge_index, count, most)
    chosen = near.nodes[: near.targets].tolist()
    assert 0 < len(chosen) <= min(most, count)
    assert near.nodes.unique().numel() == near.nodes.numel()
    found = sorted(map(tuple, near.nodes[near.edge_index].t().tolist()))
    expected = sorted((j, i) for j, i in edge_index.t().tolist() if i in chosen and i != j)
    assert found == expected
