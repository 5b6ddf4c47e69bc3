import math

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equipoise.errors import BalanceError
from equipoise.init.gain import set_gain_
from equipoise.init.schemes import initialize_
from equipoise.nn.stack import Stack
from tests.init.helpers import assert_raises_and_unchanged, max_relative_imbalance, seeded, stack
from tests.networks import CLASSES, FEATURES, graph


def score_size(model, *inputs):
    scores = model.eval()(*inputs).detach()
    return float((scores - scores.mean(dim=1, keepdim=True)).square().mean().sqrt())


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(1e-3, 1e3), depth=st.integers(2, 12), target=st.floats(0.1, 3.0))
def test_scores_get_the_target_size_whatever_the_scale_of_the_data(scale, depth, target):
    model = initialize_(Stack("gcn", [FEATURES, *[8] * (depth - 1), CLASSES]), "bal-o", generator=seeded())
    x, edge_index = graph()
    gain = set_gain_(model, scale * x, edge_index, target=target)
    assert score_size(model, scale * x, edge_index) == pytest.approx(target, rel=0.06)
    assert gain > 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: stack("gatv2"),
        lambda: stack("gatv2", skip="identity", norm="layer"),
        lambda: pyg.GIN(FEATURES, 8, 4, CLASSES),
    ],
    ids=["chain", "residual with norm", "GIN"],
)
def test_calibration_keeps_the_balance_and_starts_near_the_logarithm_of_the_classes(build):
    x, edge_index = graph()
    inputs = (30.0 * x, edge_index)
    y = torch.arange(len(x)) % CLASSES
    model = initialize_(build(), "bal-o", generator=seeded())
    before = float(F.cross_entropy(model.eval()(*inputs), y).detach())
    model = initialize_(build(), "bal-o", generator=seeded(), inputs=inputs, calibrate=True)
    assert model.training
    after = float(F.cross_entropy(model.eval()(*inputs), y).detach())
    assert abs(after - math.log(CLASSES)) < min(0.3, abs(before - math.log(CLASSES)))
    assert max_relative_imbalance(model) <= 1e-6


def test_scores_that_no_gain_can_reach_are_an_error():
    constant = nn.Sequential(nn.Linear(FEATURES, 40), nn.Softmax(dim=1))  # at most 1 / √40
    assert_raises_and_unchanged(
        constant, BalanceError, "no gain", "xav", inputs=(graph()[0],), calibrate=True, generator=seeded()
    )
    silent = nn.Linear(FEATURES, 4)
    nn.init.zeros_(silent.weight)
    nn.init.zeros_(silent.bias)
    with pytest.raises(BalanceError, match=r"standard deviation 0\.0"):
        set_gain_(silent, graph()[0])


def test_calibration_takes_the_inputs_themselves():
    x, edge_index = graph()
    inputs = (30.0 * x, edge_index)
    models = [
        initialize_(stack("gatv2"), "bal-o", generator=seeded(), **options)
        for options in ({"inputs": inputs, "calibrate": True}, {"calibrate": inputs})
    ]
    assert torch.equal(*[model.eval()(*inputs) for model in models])
    assert score_size(models[1], *inputs) == pytest.approx(0.3, rel=0.06)
