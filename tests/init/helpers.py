"""Networks and checks for the tests of initialisation."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from equipoise.init.balance import balance_
from equipoise.init.schemes import initialize_
from equipoise.laws.discover import discover
from equipoise.nn.stack import Stack
from tests.networks import CLASSES, FEATURES, graph


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def stack(kind, heads=1, **options):
    heads = 1 if kind == "gcn" else heads
    return Stack(kind, [FEATURES, 8, 8, 8, CLASSES], heads=heads, **options)


def max_relative_imbalance(model, *inputs):
    laws = [law for law in discover(model, *(inputs or graph())) if law.outgoing]
    assert laws, "no law: the test would pass trivially"
    return max(float(law.relative_imbalance().abs().max()) for law in laws)


def assert_raises_and_unchanged(model, kind, message, scheme="bal-o", function=initialize_, **options):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(kind, match=message) as caught:
        function(model, **({} if function is balance_ else {"scheme": scheme}), **options)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    return caught.value


class HandWritten(nn.Module):
    """Layers registered in another order than they run, with linear layers at both ends."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, CLASSES)
        self.second, self.first = pyg.GATv2Conv(8, 4, heads=2), pyg.GATv2Conv(8, 8, concat=False, heads=2)
        self.encode = pyg.Linear(FEATURES, 8)

    def forward(self, x, edge_index):
        h = self.encode(x).relu()
        for conv in (self.first, self.second):
            h = conv(h, edge_index).relu()
        return self.head(h)
