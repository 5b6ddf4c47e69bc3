import torch
from torch import nn

from equipoise.laws.discover import discover
from equipoise.laws.law import Law
from equipoise.laws.verify import verify
from tests.networks import CLASSES, FEATURES, gatv2, graph


def test_tells_a_law_from_what_is_none():
    model = gatv2([FEATURES, 8, 8, CLASSES])
    laws = discover(model, *graph())
    broken = Law(laws[0].incoming, laws[0].outgoing[1:])
    changes = verify(model, [*laws, broken], *graph())
    assert max(changes[:2]) < 1e-12
    assert changes[2] > 1e-3


def test_laws_of_one_model_hold_for_another_of_the_same_make():
    first, second = (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2))
    x = torch.randn(6, 5)
    assert max(verify(second, discover(first, x), x)) < 1e-12
