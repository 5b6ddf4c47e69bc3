"""Functions that are homogeneous for small λ only must not give a law."""

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equipoise.laws.candidates import slots_overlap
from equipoise.laws.discover import discover
from equipoise.laws.explain import explain
from tests.networks import FEATURES, graph

X = torch.randn(20, 8)
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


@pytest.mark.parametrize("width", [16, 128])
@pytest.mark.parametrize("name", NEARLY_HOMOGENEOUS)
def test_nearly_homogeneous_activations_have_no_law(name, width):
    activation = NEARLY_HOMOGENEOUS[name]
    assert discover(mlp(activation, activation, width=width), X) == []


def test_std_of_pna_has_no_law():
    degrees = torch.ones(8, dtype=torch.long)
    model = pyg.PNA(FEATURES, 8, 2, 3, aggregators=["mean", "std"], scalers=["identity"], deg=degrees)
    explanation = explain(model, *graph())
    assert not any("pre_nns" in slot.name for law in explanation.laws for slot in law.incoming)
    assert len(explanation.laws) == 3
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
