import pytest
import torch
from torch import nn

from equipoise.laws.probe import Probe
from tests.networks import CLASSES, FEATURES, gatv2, graph

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def trace_homogeneity(model, *inputs):
    return Probe(model, inputs, {}, None).trace_homogeneity()


def test_first_reads_follow_execution_not_registration():
    class ReverseRegistration(nn.Module):
        def __init__(self):
            super().__init__()
            self.second, self.first = nn.Linear(8, 3), nn.Linear(5, 8)

        def forward(self, x):
            return self.second(self.first(x).relu())

    first_reads = Probe(ReverseRegistration(), (X,), {}, None).trace().first_reads()
    assert first_reads["first.weight"] < first_reads["second.weight"]


@pytest.mark.parametrize(
    ("module", "degree", "breaks_laws"),
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
def test_degree_of_homogeneity(module, degree, breaks_laws):
    trace = trace_homogeneity(nn.Sequential(nn.Linear(5, 8), module, nn.Linear(8, 3)), X)
    (call,) = [call for call in trace.modules if call.function == type(module).__name__]
    assert call.degree == degree
    assert call.breaks_laws == breaks_laws
    functions = [call for call in trace.calls if call.function != "linear"]
    assert any(call.breaks_laws for call in functions) == breaks_laws


def test_bias_does_not_break_laws():
    assert not any(
        call.breaks_laws for call in trace_homogeneity(nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3)), X).calls
    )


def test_squared_weights_are_those_of_both_factors():
    class SquaredFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x):
            a = self.a(x)
            return self.c(a * a + a * self.b(x))

    squared = [call.squared_weights for call in trace_homogeneity(SquaredFeatures(), X).calls if call.squared_weights]
    assert squared == [frozenset({"a.weight"})]


def test_attention_squares_no_weights():
    trace = trace_homogeneity(gatv2([FEATURES, 8, CLASSES]), *graph())
    assert not any(call.squared_weights for call in trace.calls)
    assert trace.output_weights == {"conv2.lin_l.weight"}
