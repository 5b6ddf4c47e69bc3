import json

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn

from equipoise.laws.explain import explain
from equipoise.laws.rebalance import rebalance_
from tests.networks import CLASSES, FEATURES, Chain, gatv2, graph

X = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))


def between_linear_layers(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), *modules, nn.Linear(8, 3))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(5, 8, bias=False)

    def forward(self, x):
        return self.encoder(x).relu() @ self.encoder.weight


class FunctionalLayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(F.layer_norm(self.a(x), (8,)).relu())


class MixedNeurons(nn.Module):
    """Adds its neighbour to every neuron, without parameters."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        a = self.a(x)
        return self.b((a + a.roll(1, -1)).relu())


CAUSES = {
    "tanh": (between_linear_layers(nn.Tanh()), (X,), "tanh is not positively homogeneous", ("tanh",)),
    "gelu": (between_linear_layers(nn.GELU()), (X,), "gelu is not positively homogeneous", ("gelu",)),
    "functional layer norm": (
        FunctionalLayerNorm(),
        (X,),
        "a normalisation (layer_norm)",
        ("layer_norm",),
    ),
    "batch norm": (
        between_linear_layers(nn.BatchNorm1d(8), nn.ReLU()),
        (X,),
        "a normalisation (BatchNorm1d)",
        ("BatchNorm1d",),
    ),
    "layer norm": (
        between_linear_layers(nn.LayerNorm(8), nn.ReLU()),
        (X,),
        "a normalisation (LayerNorm)",
        ("LayerNorm",),
    ),
    "activation and norm": (
        between_linear_layers(nn.Sigmoid(), nn.LayerNorm(8)),
        (X,),
        "sigmoid is not positively homogeneous, and a normalisation (LayerNorm)",
        ("LayerNorm", "sigmoid"),
    ),
    "ELU in a GAT": (
        Chain(pyg.GATv2Conv(FEATURES, 8), pyg.GATv2Conv(8, CLASSES), activation=F.elu),
        graph(),
        "elu is not positively homogeneous",
        ("elu",),
    ),
    "norm without a torch function": (
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
    "relu6": (between_linear_layers(nn.ReLU6()), (X,), "ReLU6 (hardtanh) is not positively homogeneous", ("hardtanh",)),
    "hardtanh": (
        between_linear_layers(nn.Hardtanh(-20, 20)),
        (X,),
        "hardtanh is not positively homogeneous",
        ("hardtanh",),
    ),
    "threshold": (
        between_linear_layers(nn.Threshold(1e-4, 0.0)),
        (X,),
        "threshold is positively homogeneous only approximately, up to ε = 1e-4",
        ("_threshold",),
    ),
    "ε of a normalisation": (
        between_linear_layers(nn.LayerNorm(8, eps=1e-3), nn.ReLU()),
        (X,),
        "a normalisation (LayerNorm) cancels any rescaling before it, approximately, up to ε = 1e-3",
        ("LayerNorm",),
    ),
    "tied weights": (Tied(), (X,), "the weights are used 2 times", ()),
    "mixed neurons": (MixedNeurons(), (X,), "the neurons are mixed before the next weights read them", ()),
}


@pytest.mark.parametrize("architecture", CAUSES)
def test_cause_of_missing_law(architecture):
    model, inputs, cause, functions = CAUSES[architecture]
    explanation = explain(model, *inputs)
    (missing,) = explanation.missing
    assert cause in missing.cause
    assert missing.functions == functions
    assert missing.neurons == 8
    assert str(missing.weights[0]) in str(explanation)
    assert cause.split(" (")[0].split(",")[0] in " ".join(str(explanation).split())


def test_identity_skips_to_the_input_are_reported():
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    (missing,) = explain(block, torch.randn(3, 5, 8)).missing
    assert "LayerNorm" in missing.cause
    assert "identity skips tie the neurons to the network's" in missing.cause


def test_frozen_parameters_are_reported():
    model = between_linear_layers(nn.ReLU())
    model[2].requires_grad_(False)
    (missing,) = explain(model, X).missing
    assert missing.cause == "the parameters that would balance them are frozen (2.weight, 2.bias)"


def test_network_without_missing_laws():
    model = gatv2([FEATURES, 8, 8, CLASSES], share_weights=True, bias=False)
    explanation = explain(model, *graph())
    assert explanation.missing == ()
    assert explanation.warnings == ()
    text = str(explanation)
    assert text.startswith("Chain: 2 laws over 16 neurons")
    assert "conv1.lin_l.weight[i,:] = conv1.att[i] + conv2.lin_l.weight[:,i]   (8 neurons)" in text
    assert text.count("█") > 0


def test_bar_is_empty_if_balanced_and_full_if_one_side_dominates():
    model = gatv2([FEATURES, 8, CLASSES], share_weights=True, bias=False)
    model.conv1.lin_l.weight.data.mul_(1e4)
    (unbalanced,) = explain(model, *graph()).balance
    assert unbalanced.bar == "█" * 24
    assert unbalanced.heavier == "incoming"
    rebalance_(explain(model, *graph()).laws)
    (balanced,) = explain(model, *graph()).balance
    assert balanced.bar == "░" * 24
    assert balanced.heavier == ""
    assert balanced.worst < 1e-6


def test_warns_of_nan_parameters_and_missing_gradients():
    class UnusedLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.unused = between_linear_layers(nn.ReLU()), nn.Linear(2, 2)

        def forward(self, x):
            return self.net(x)

    model = UnusedLayer()
    model.net[0].weight.data[0, 0] = float("nan")
    explanation = explain(model, X)
    assert len(explanation.laws) == 1
    assert "not finite (NaN or infinite): net.0.weight" in explanation.warnings
    assert any("no gradient: unused.weight, unused.bias" in warning for warning in explanation.warnings)


def test_lazy_parameters_give_a_warning():
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    explanation = explain(model, X)
    assert [law.neurons for law in explanation.laws] == [8]
    assert explanation.balance[0].worst > 0
    (warning,) = explanation.warnings
    assert "uninitialised lazy parameters: 0.weight, 0.bias" in warning
    assert "run the model once" in warning


def test_other_exponents_and_buffers_are_explained():
    class Squared(nn.Module):
        def forward(self, x):
            return x.relu() ** 2

    model = between_linear_layers(nn.BatchNorm1d(8), Squared()).eval()
    text = " ".join(str(explain(model, X)).split())
    assert "1.weight[i] + 1.bias[i] = 2 × 3.weight[:,i]" in text
    assert "gradient flow conserves ‖1.weight[i]‖² + ‖1.bias[i]‖² − 2 ‖3.weight[:,i]‖²" in text
    assert "only for the current value of 1.running_mean" in text


def test_to_dict_is_json_serialisable():
    data = json.loads(json.dumps(explain(between_linear_layers(nn.Tanh(), nn.Linear(8, 8), nn.ReLU()), X).to_dict()))
    assert data["laws"][0]["neurons"] == len(data["laws"][0]["imbalance"]) == 8
    assert data["laws"][0]["exponents"] == [1, 1, -1]
    assert data["laws"][0]["conserved"].startswith("‖2.weight[i,:]‖²")
    assert data["missing"][0]["functions"] == ["tanh"]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_are_named(kind):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent, self.linear = getattr(nn, kind)(5, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.linear(self.recurrent(x)[0])

    causes = {missing.cause for missing in explain(Recurrent(), torch.randn(6, 5)).missing}
    assert causes == {f"{kind.lower()} is not positively homogeneous"}


def test_shared_activation_of_layers_with_different_widths():
    model = pyg.GIN(FEATURES, 8, 3, CLASSES, norm="batch_norm")  # one ReLU for all layers
    causes = {missing.cause for missing in explain(model, *graph()).missing}
    assert causes == {"a normalisation (BatchNorm1d) cancels any rescaling before it, approximately, up to ε = 1e-5"}
