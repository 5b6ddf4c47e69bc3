from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv
from torch_geometric.utils import contains_isolated_nodes, contains_self_loops, is_undirected

from equipoise.data.synthetic import synthetic_citation
from equipoise.errors import DataOptionError

KEYS = ("x", "y", "edge_index", "train_mask", "val_mask", "test_mask")


def test_graph_of_seed_zero_is_equal_on_all_machines() -> None:
    data = synthetic_citation()
    digest = hashlib.sha256(b"".join(data[key].contiguous().numpy().tobytes() for key in KEYS))
    assert digest.hexdigest() == "467122519fed3ed36f10594ebb30da00973c540de031744ae5a3e746cdca783a"


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**63))
def test_every_seed_gives_a_citation_graph(seed: int) -> None:
    data, again = synthetic_citation(seed), synthetic_citation(seed)
    assert all(torch.equal(data[key], again[key]) for key in KEYS)
    assert data.x.shape == (1750, 500)
    assert data.x.dtype == torch.float
    torch.testing.assert_close(data.x.sum(dim=1), torch.ones(1750))
    assert 0.005 < float((data.x > 0).float().mean()) < 0.02
    assert data.y.bincount().tolist() == [250] * 7
    assert is_undirected(data.edge_index)
    assert not contains_self_loops(data.edge_index)
    assert not contains_isolated_nodes(data.edge_index, num_nodes=1750)
    assert 3.8 < data.num_edges / data.num_nodes < 4.0
    source, target = data.edge_index
    assert 0.7 < float((data.y[source] == data.y[target]).float().mean()) < 0.85


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**63))
def test_split_has_the_usual_sizes(seed: int) -> None:
    data = synthetic_citation(seed)
    assert data.y[data.train_mask].bincount().tolist() == [20] * 7
    assert (int(data.val_mask.sum()), int(data.test_mask.sum())) == (500, 1000)
    uses = data.train_mask.long() + data.val_mask.long() + data.test_mask.long()
    assert int(uses.max()) == 1


def test_seeds_give_different_graphs() -> None:
    one, other = synthetic_citation(1), synthetic_citation(2)
    assert not torch.equal(one.y, other.y)
    assert not torch.equal(one.x, other.x)
    assert not torch.equal(one.edge_index, other.edge_index)


def test_degrees_are_skewed() -> None:
    degree = synthetic_citation().edge_index[0].bincount()
    assert int(degree.max()) > 20
    assert int(degree.median()) <= 4


@pytest.mark.parametrize("seed", ["1", 1.5, None])
def test_a_seed_that_is_no_integer_raises(seed: object) -> None:
    with pytest.raises(DataOptionError, match="is not a valid seed"):
        synthetic_citation(seed)  # type: ignore[arg-type]


def test_negative_seed_raises() -> None:
    with pytest.raises(DataOptionError, match="-1 is not a valid seed"):
        synthetic_citation(-1)


class DefaultGAT(nn.Module):
    def __init__(self, data: Data, layers: int) -> None:
        super().__init__()
        widths = [data.num_features, *[64] * (layers - 1), 7]
        self.layers = nn.ModuleList(GATv2Conv(a, b, share_weights=True, bias=False) for a, b in pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x, edge_index).relu()
        last: Tensor = self.layers[-1](x, edge_index)
        return last


def accuracy_after_training(data: Data, layers: int, lr: float, epochs: int) -> float:
    torch.manual_seed(0)
    model = DefaultGAT(data, layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        optimizer.zero_grad()
        output = model(data.x, data.edge_index)
        F.cross_entropy(output[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
    correct = model(data.x, data.edge_index).argmax(dim=1) == data.y
    return float(correct[data.test_mask].float().mean())


def test_default_gat_fails_with_depth() -> None:
    data = synthetic_citation()
    assert accuracy_after_training(data, layers=2, lr=0.1, epochs=200) > 0.65
    assert accuracy_after_training(data, layers=10, lr=0.05, epochs=60) < 0.4
