import json

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn

from equipoise.laws.explain import explain
from equipoise.laws.rebalance import rebalance_
from tests.networks import CLASSES, FEATURES, Chain, gatv2, graph

X = torch.randn(9, 5)


def between(*modules: nn.Module) -> nn.Module:
    """Something between two linear layers."""
    return nn.Sequential(nn.Linear(5, 8), *modules, nn.Linear(8, 3))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(5, 8, bias=False)

    def forward(self, x):
        return self.encoder(x).relu() @ self.encoder.weight


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(F.layer_norm(self.a(x), (8,)).relu())


class Squared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(self.a(x).relu() ** 2)


class Mixed(nn.Module):
    """Every neuron is mixed with its neighbour by something that nobody trains."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        a = self.a(x)
        return self.b((a + a.roll(1, -1)).relu())


CAUSES = {
    "tanh": (between(nn.Tanh()), (X,), "tanh is not positively homogeneous", ("tanh",)),
    "gelu": (between(nn.GELU()), (X,), "gelu is not positively homogeneous", ("gelu",)),
    "layer norm as a function": (
        Functional(),
        (X,),
        "a normalisation (layer_norm)",
        ("layer_norm",),
    ),
    "batch norm": (between(nn.BatchNorm1d(8), nn.ReLU()), (X,), "a normalisation (BatchNorm1d)", ("BatchNorm1d",)),
    "layer norm": (between(nn.LayerNorm(8), nn.ReLU()), (X,), "a normalisation (LayerNorm)", ("LayerNorm",)),
    "both": (
        between(nn.Sigmoid(), nn.LayerNorm(8)),
        (X,),
        "sigmoid is not positively homogeneous, and a normalisation (LayerNorm)",
        ("LayerNorm", "sigmoid"),
    ),
    "elu in a GAT": (
        Chain(pyg.GATv2Conv(FEATURES, 8), pyg.GATv2Conv(8, CLASSES), activation=F.elu),
        graph(),
        "elu is not positively homogeneous",
        ("elu",),
    ),
    "a norm written with plain functions": (
        pyg.GCN(FEATURES, 8, num_layers=2, out_channels=CLASSES, norm="pair_norm"),
        graph(),
        "a normalisation (PairNorm)",
        ("PairNorm",),
    ),
    "SuperGAT": (
        Chain(pyg.SuperGATConv(FEATURES, 8), pyg.SuperGATConv(8, CLASSES)),
        graph(),
        "an attention score quadratic in the features (mul)",
        (),
    ),
    "squared relu": (Squared(), (X,), "pow is homogeneous of degree 2, not 1", ("pow",)),
    "tied weights": (Tied(), (X,), "the weights are used 2 times", ()),
    "mixed": (Mixed(), (X,), "the neurons are mixed before they are read", ()),
}


@pytest.mark.parametrize("case", CAUSES)
def test_names_the_cause(case):
    model, inputs, cause, functions = CAUSES[case]
    explanation = explain(model, *inputs)
    (missing,) = explanation.missing
    assert cause in missing.cause
    assert missing.functions == functions
    assert missing.neurons == 8
    assert str(missing.weights[0]) in str(explanation)
    assert cause.split(" (")[0].split(",")[0] in " ".join(str(explanation).split())


def test_identity_skips_to_the_input_are_said():
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    (stream,) = explain(block, torch.randn(3, 5, 8)).missing
    assert "LayerNorm" in stream.cause
    assert "identity skips tie the neurons to the network's" in stream.cause


def test_a_frozen_reader_is_said():
    model = between(nn.ReLU())
    model[2].requires_grad_(False)
    (missing,) = explain(model, X).missing
    assert missing.cause == "what would balance them is frozen (2.weight, 2.bias)"


def test_covered_networks_have_nothing_missing():
    model = gatv2([FEATURES, 8, 8, CLASSES], share_weights=True, bias=False)
    explanation = explain(model, *graph())
    assert explanation.missing == ()
    assert explanation.warnings == ()
    text = str(explanation)
    assert text.startswith("Chain: 2 laws over 16 neurons")
    assert "conv1.lin_l.weight[i,:] = conv1.att[i] + conv2.lin_l.weight[:,i]   (8 neurons)" in text
    assert text.count("█") > 0


def test_the_bar_is_empty_in_balance_and_full_at_the_extreme():
    model = gatv2([FEATURES, 8, CLASSES], share_weights=True, bias=False)
    model.conv1.lin_l.weight.data.mul_(1e4)
    (out_of_balance,) = explain(model, *graph()).balance
    assert out_of_balance.bar == "█" * 24
    assert out_of_balance.heavier == "incoming"
    rebalance_(explain(model, *graph()).laws)
    (balanced,) = explain(model, *graph()).balance
    assert balanced.bar == "░" * 24
    assert balanced.heavier == ""
    assert balanced.worst < 1e-6


def test_warns_of_what_is_broken():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.spare = between(nn.ReLU()), nn.Linear(2, 2)

        def forward(self, x):
            return self.net(x)

    model = Unused()
    model.net[0].weight.data[0, 0] = float("nan")
    explanation = explain(model, X)
    assert len(explanation.laws) == 1
    assert "not finite (NaN or infinite): net.0.weight" in explanation.warnings
    assert any("no gradient reaches: spare.weight, spare.bias" in warning for warning in explanation.warnings)


def test_a_lazy_model_is_explained_as_far_as_one_can():
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    (warning,) = explain(model, X).warnings
    assert "never initialised (lazy): 0.weight, 0.bias" in warning
    assert "run the model once" in warning


def test_carries_its_data_as_json():
    data = json.loads(json.dumps(explain(between(nn.Tanh(), nn.Linear(8, 8), nn.ReLU()), X).to_dict()))
    assert data["laws"][0]["neurons"] == len(data["laws"][0]["imbalance"]) == 8
    assert data["missing"][0]["functions"] == ["tanh"]
