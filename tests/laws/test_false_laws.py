"""Functions that are homogeneous for small λ only must not give a law."""

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from equipoise.laws.candidates import slots_overlap
from equipoise.laws.discover import discover
from equipoise.laws.explain import explain
from tests.networks import FEATURES, graph

X = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
NEARLY_HOMOGENEOUS = {
    "ReLU6": nn.ReLU6(),
    "Hardtanh": nn.Hardtanh(-20, 20),
    "Threshold": nn.Threshold(1e-4, 0.0),
    "Softshrink": nn.Softshrink(1e-3),
    "Hardtanh, wide": nn.Hardtanh(-1e5, 1e5),
}
HOMOGENEOUS = {"ReLU": nn.ReLU(), "LeakyReLU": nn.LeakyReLU(), "identity": nn.Identity()}


def mlp(*activations, width=16):
    layers = [nn.Linear(8, width)]
    for activation in activations:
        layers += [activation, nn.Linear(width, width)]
    return nn.Sequential(*layers[:-1], nn.Linear(width, 3))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


ADVERSARIAL = {
    "ε = 1e-5 in a root": Function(lambda x: (x.square() + 1e-5).sqrt()),
    "ε = 1e-16 in a root": Function(lambda x: (x.square() + 1e-16).sqrt()),
    "smooth ReLU": Function(lambda x: 0.5 * (x + (x * x + 1e-14).sqrt())),
    "Softplus(beta=1e2)": nn.Softplus(beta=1e2),
    "Softplus(beta=1e6)": nn.Softplus(beta=1e6),
    "Threshold(1e-6)": nn.Threshold(1e-6, 0.0),
    "Hardshrink(1e-6)": nn.Hardshrink(1e-6),
    "Hardtanh(±1e3)": nn.Hardtanh(-1e3, 1e3),
    "x / (1 + 1e-8 |x|)": Function(lambda x: x / (1.0 + 1e-8 * x.abs())),
    "log(1 + 1e-8 |x|)": Function(lambda x: x.sign() * torch.log1p(1e-8 * x.abs()) * 1e8),
    "ReLU + 1e-6 tanh": Function(lambda x: x.relu() + 1e-6 * x.tanh()),
    "ReLU + 1e-7 Hardtanh": Function(lambda x: x.relu() + 1e-7 * x.clamp(-1e3, 1e3)),
    "ReLU + 1e-9": Function(lambda x: x.relu() + 1e-9),
    "chain of LeakyReLU and ReLU6": nn.Sequential(nn.LeakyReLU(1e-3), nn.LeakyReLU(1e-3), nn.ReLU6()),
    "ReLU6 behind a gain of 1e6": Function(lambda x: functional.relu6(1e6 * x) * 1e-6),
    "ReLU6 behind a gain of 1e-6": Function(lambda x: functional.relu6(1e-6 * x) * 1e6),
    "dropout and ReLU6": nn.Sequential(nn.Dropout(), nn.ReLU6()),
    "clipped softmax gate": Function(lambda x: x * x.softmax(-1).clamp(min=1e-6)),
    "threshold of the norm": Function(lambda x: x * (x.norm(dim=-1, keepdim=True) > 1e-3)),
    "threshold of the minimum": Function(lambda x: x * (x.abs().amin(dim=-1, keepdim=True) < 1e3)),
    "maximum norm": Function(lambda x: x.renorm(2, 0, 1e4)),
    "cast to float16": Function(lambda x: x.half().to(x.dtype)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_no_law_crosses_a_function_that_is_not_homogeneous(name, dtype):
    torch.manual_seed(1)
    model = mlp(ADVERSARIAL[name], ADVERSARIAL[name]).to(dtype)
    for training in (True, False):
        assert discover(model.train(training), X.to(dtype)) == []


@pytest.mark.parametrize("eps", [1e-5, 1e-12])
def test_weights_before_a_group_norm_have_no_law(eps):
    model = mlp(nn.Sequential(nn.GroupNorm(4, 16, eps=eps), nn.ReLU()))
    for training in (True, False):
        laws = discover(model.train(training), X)
        assert [str(law) for law in laws] == ["1.0.weight[i] + 1.0.bias[i] = 2.weight[:,i]   (16 neurons)"]


def test_laws_survive_a_bias_that_a_softmax_cancels():
    """λ amplifies the rounding of the keys' biases, and eight batch norms amplify it again."""

    class GPS(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(pyg.GPSConv(16, None, heads=2, dropout=0.0) for _ in range(8))
            self.linear = nn.Linear(16, 3)

        def forward(self, x, edge_index):
            for conv in self.convs:
                x = conv(x, edge_index)
            return self.linear(x)

    torch.manual_seed(0)
    laws = discover(GPS(), torch.randn(24, 16), torch.randint(0, 24, (2, 60)))
    queries = [law for law in laws if str(law.outgoing[0]).endswith("in_proj_weight[16+i,:]")]
    assert len(queries) == 8
    assert len(laws) == 25


@pytest.mark.parametrize("width", [16, 128])
@pytest.mark.parametrize("name", NEARLY_HOMOGENEOUS)
def test_nearly_homogeneous_activations_have_no_law(name, width):
    activation = NEARLY_HOMOGENEOUS[name]
    assert discover(mlp(activation, activation, width=width), X) == []


@pytest.mark.parametrize("layers", [2, 8])
def test_std_of_pna_has_no_law(layers):
    degrees = torch.ones(8, dtype=torch.long)
    model = pyg.PNA(FEATURES, 8, layers, 3, aggregators=["mean", "std"], scalers=["identity"], deg=degrees)
    explanation = explain(model, *graph())
    assert not any("pre_nns" in slot.name for law in explanation.laws for slot in law.incoming)
    assert len(explanation.laws) == 2 * layers - 1
    causes = {missing.cause for missing in explanation.missing}
    assert causes == {"clamp is positively homogeneous only approximately, up to ε = 1e-5"}


def test_activation_that_clips_only_at_the_own_parameters():
    class Clipped(nn.Module):
        """Clips where a parameter that random numbers do not reach is large."""

        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 4), nn.Linear(4, 3)
            self.register_buffer("limit", torch.tensor(1e8))

        def forward(self, x):
            return self.b(self.a(x).relu().minimum(self.limit))

    model = Clipped()
    model.a.weight.data.mul_(1e5)
    assert discover(model, X) == []


MIXED = [*NEARLY_HOMOGENEOUS, *HOMOGENEOUS]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(MIXED), min_size=1, max_size=4), st.integers(2, 12))
def test_exactly_the_homogeneous_layers_have_laws(names, width):
    torch.manual_seed(width)
    laws = discover(mlp(*[(NEARLY_HOMOGENEOUS | HOMOGENEOUS)[name] for name in names], width=width), X)
    expected = [f"{2 * k}.weight" for k, name in enumerate(names) if name in HOMOGENEOUS]
    assert [law.incoming[0].name for law in laws] == expected
    assert all(law.neurons == width for law in laws)


def test_no_law_of_one_slot_with_itself_and_no_overlapping_windows():
    models = [
        nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8), nn.GELU()
        ),
        nn.Sequential(nn.Conv2d(3, 16, 1), nn.GELU(), nn.Conv2d(16, 16, 3, groups=4), nn.ReLU(), nn.Conv2d(16, 4, 1)),
    ]
    for model in models:
        laws = explain(model, torch.randn(4, 3, 8, 8)).laws
        for law in laws:
            assert not set(law.incoming) & set(law.outgoing)
        slots = [slot for law in laws for slot in law.slots]
        assert not [(a, b) for a in slots for b in slots if a != b and slots_overlap(a, b)]
