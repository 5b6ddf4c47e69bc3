import pytest
import torch
from torch import nn

from equipoise.laws.probe import Probe
from tests.networks import CLASSES, FEATURES, gatv2, graph

X = torch.randn(6, 5)


def calls(model, *inputs):
    return Probe(model, inputs, {}, None).examine()


def test_places_follow_execution_not_registration():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.second, self.first = nn.Linear(8, 3), nn.Linear(5, 8)

        def forward(self, x):
            return self.second(self.first(x).relu())

    places = Probe(Backwards(), (X,), {}, None).trace().places()
    assert places["first.weight"] < places["second.weight"]


@pytest.mark.parametrize(
    ("module", "degree", "spoils"),
    [
        (nn.ReLU(), 1, False),
        (nn.LeakyReLU(), 1, False),
        (nn.PReLU(), 1, False),
        (nn.Dropout(0.5), 1, False),
        (nn.Tanh(), None, True),
        (nn.ELU(), None, True),
        (nn.GELU(), None, True),
        (nn.LayerNorm(8), 0, True),
        (nn.BatchNorm1d(8), 0, True),
        (nn.Softmax(-1), None, True),
    ],
)
def test_how_a_function_takes_doubled_features(module, degree, spoils):
    trace = calls(nn.Sequential(nn.Linear(5, 8), module, nn.Linear(8, 3)), X)
    (call,) = [call for call in trace.modules if call.function == type(module).__name__]
    assert call.degree == degree
    assert call.spoils == spoils
    functions = [call for call in trace.calls if call.function != "linear"]
    assert any(call.spoils for call in functions) == spoils


def test_a_biased_layer_does_not_spoil():
    assert not any(call.spoils for call in calls(nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3)), X).calls)


def test_squares_are_products_of_a_weight_with_itself():
    class Squared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x):
            a = self.a(x)
            return self.c(a * a + a * self.b(x))

    squares = [call.squares for call in calls(Squared(), X).calls if call.squares]
    assert squares == [frozenset({"a.weight"})]


def test_attention_is_no_square():
    trace = calls(gatv2([FEATURES, 8, CLASSES]), *graph())
    assert not any(call.squares for call in trace.calls)
    assert trace.returned == {"conv2.lin_l.weight"}
