"""Roles of the parameters of hand-written layers, inferred from the laws."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.utils import softmax

from equipoise.init.inferred_roles import MatrixAxes, infer_roles, matrix_axes, output_growth
from equipoise.init.network import network_roles
from equipoise.init.schemes import initialize_
from equipoise.laws.discover import discover
from equipoise.laws.probe import Probe
from tests.init.helpers import seeded
from tests.networks import CLASSES, FEATURES, Chain, graph

WIDTH = 8


class Attention(nn.Module):
    """GAT as one writes it by hand: x W with bare parameters, and scores of several kinds."""

    def __init__(self, channels_in, channels, scores="concatenated"):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(channels_in, channels)), nn.Parameter(torch.randn(channels))
        shape = {"concatenated": (2 * channels,), "two rows": (2, channels), "one row": (1, 2 * channels)}
        self.scores = scores
        if scores == "linear":
            self.a = nn.Linear(2 * channels, 1, bias=False)
        elif scores == "bilinear":
            self.a = nn.Parameter(torch.randn(channels, channels))
        else:
            self.a = nn.Parameter(torch.randn(shape[scores]))

    def score(self, source, target):
        if self.scores == "bilinear":
            return ((target @ self.a) * source).sum(1)
        if self.scores == "two rows":
            return source @ self.a[0] + target @ self.a[1]
        both = torch.cat([source, target], dim=1)
        return self.a(both).squeeze(1) if self.scores == "linear" else both @ self.a.view(-1)

    def forward(self, x, edge_index):
        z, (source, target) = x @ self.w, edge_index
        alpha = softmax(F.leaky_relu(self.score(z[source], z[target]), 0.2), target, num_nodes=len(x))
        return torch.zeros_like(z).index_add(0, target, alpha[:, None] * z[source]) + self.b


class DotProduct(nn.Module):
    """A graph transformer by hand, with bare parameters or linear modules."""

    def __init__(self, channels_in, channels, linear=False):
        super().__init__()
        for name in ("query", "key", "value"):
            matrix = nn.Linear(channels_in, channels) if linear else nn.Parameter(torch.randn(channels, channels_in))
            setattr(self, name, matrix)

    def forward(self, x, edge_index):
        linear = isinstance(self.query, nn.Linear)
        q, k, v = (m(x) if linear else x @ m.t() for m in (self.query, self.key, self.value))
        source, target = edge_index
        alpha = softmax((q[target] * k[source]).sum(1), target, num_nodes=len(x))
        return torch.zeros_like(v).index_add(0, target, alpha[:, None] * v[source])


def chain(layer, depth=3, **settings):
    widths = [FEATURES, *[WIDTH] * (depth - 1), CLASSES]
    return Chain(*(layer(a, b, **settings) for a, b in pairwise(widths)))


class LogSoftmax(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, edge_index):
        return self.model(x, edge_index).log_softmax(dim=1)


def roles_by_name(model, *inputs):
    roles = infer_roles(discover(model, *inputs), output_growth(lambda: Probe(model, inputs, {}, None)))
    return {name: roles.get(parameter) for name, parameter in model.named_parameters()}


def kinds(model, *inputs):
    """The role of each kind of parameter: those that end in the same name must agree."""
    found = {}
    for name, role in roles_by_name(model, *inputs).items():
        found.setdefault(".".join(name.split(".")[-2:]) if "weight" in name else name.split(".")[-1], set()).add(role)
    return found


@pytest.mark.parametrize("last", [lambda model: model, LogSoftmax], ids=["scores", "log-softmax"])
@pytest.mark.parametrize("scores", ["concatenated", "two rows", "one row"])
def test_hand_written_attention(scores, last):
    roles = kinds(last(chain(Attention, scores=scores)), *graph())
    # the attention vector and the bias of the last layer act on no hidden neuron
    assert roles == {"w": {"features"}, "a": {"attention", None}, "b": {"bias", None}}


def test_attention_by_a_linear_module_is_no_layer():
    model = chain(Attention, scores="linear")
    laws = discover(model, *graph())
    roles = network_roles(model, laws, output_growth(lambda: Probe(model, graph(), {}, None)))
    assert {conv.a.weight for conv in list(model.children())[:-1]} == set(roles.attention)
    assert {conv.w for conv in model.children()} <= set(roles.features)


def test_a_chain_of_matrices_needs_no_test_of_growth():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    x = torch.randn(5, 4)
    roles = infer_roles(discover(model, x), output_growth(lambda: pytest.fail("a probe was made")))
    assert sorted(roles.values()) == ["bias", "features", "features"]


def test_a_bilinear_score_is_no_feature_path():
    roles = roles_by_name(chain(Attention, scores="bilinear"), *graph())
    assert {role for name, role in roles.items() if name.endswith(".w")} == {"features"}
    assert "attention" not in roles.values()


@pytest.mark.parametrize("linear", [False, True])
def test_query_and_key_also_of_the_first_layer(linear):
    model = chain(DotProduct, linear=linear)
    laws = discover(model, *graph())
    roles = network_roles(model, laws, output_growth(lambda: Probe(model, graph(), {}, None)))
    expected = [getattr(conv, name) for conv in model.children() for name in ("query", "key")]
    assert set(roles.query_key) == {getattr(matrix, "weight", matrix) for matrix in expected}


def test_parallel_outputs_are_features():
    """Two matrices of the last layer read the same neurons, as in GraphSAGE; neither is attention."""

    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.u, self.v = (nn.Parameter(torch.randn(s)) for s in ((FEATURES, WIDTH), (WIDTH, 3), (WIDTH, 3)))

        def forward(self, x):
            h = (x @ self.w).relu()
            return h @ self.u + h.roll(1, 0) @ self.v

    assert roles_by_name(TwoHeads(), graph()[0]) == dict.fromkeys("wuv", "features")


def test_a_single_output_is_a_feature_weight():
    roles = roles_by_name(nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)), graph()[0])
    assert roles == {"0.weight": "features", "0.bias": "bias", "2.weight": "features", "2.bias": None}


def test_scales_of_norms_keep_their_values():
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    roles = roles_by_name(model, graph()[0])
    assert roles["1.weight"] is roles["1.bias"] is None
    assert roles["3.weight"] == "features"
    scale = nn.init.uniform_(model[1].weight, 0.5, 2.0).detach().clone()
    initialize_(model, "llortho", inputs=(graph()[0],), generator=seeded())
    assert torch.equal(model[1].weight, scale)


def test_weights_of_a_scalar_input_are_no_bias():
    class Scalar(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.t = nn.Parameter(torch.randn(FEATURES, WIDTH)), nn.Parameter(torch.randn(1, WIDTH))
            self.out = nn.Parameter(torch.randn(WIDTH, CLASSES))

        def forward(self, x, t):
            return (x @ self.w + t @ self.t).relu() @ self.out

    x = graph()[0]
    assert roles_by_name(Scalar(), x, torch.randn(len(x), 1))["t"] == "features"


def test_axes_of_matrices():
    conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 1))
    laws = discover(conv, torch.randn(2, 3, 7, 7))
    assert matrix_axes(conv[0].weight, laws) == MatrixAxes((0,), (1, 2, 3))
    hidden = matrix_axes(conv[2].weight, laws)
    assert {hidden.rows, hidden.columns} == {(0,), (1,)}
    assert hidden.slices == (2, 3)
    assert matrix_axes(conv[4].bias, laws) is None


def test_taps_of_a_convolution_look_linear_together():
    last = nn.Conv2d(8, 2, 3, bias=False)  # a bias that acts on no hidden neuron keeps its value
    conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), last).double()
    x, y = torch.randn(2, 2, 3, 9, 9, dtype=torch.float64)
    initialize_(conv, "bal-o", inputs=(x,), generator=seeded())
    torch.testing.assert_close(conv(2 * x - 3 * y), 2 * conv(x) - 3 * conv(y))
    laws = discover(conv, x)
    assert len(laws) == 2
    assert max(float(law.relative_imbalance().abs().max()) for law in laws) <= 1e-10


def test_relations_are_slices():
    class Relational(Chain):
        def forward(self, x, edge_index):
            kind = edge_index[0] % 2
            for conv in list(self.children())[:-1]:
                x = conv(x, edge_index, kind).relu()
            return list(self.children())[-1](x, edge_index, kind)

    model = Relational(*(pyg.RGCNConv(a, b, 2) for a, b in pairwise([FEATURES, WIDTH, WIDTH, CLASSES])))
    initialize_(model, "bal-o", inputs=graph(), generator=seeded())
    hidden = list(model.children())[1].weight
    assert hidden.shape == (2, WIDTH, WIDTH)
    half = WIDTH // 2
    torch.testing.assert_close(hidden[:, :half], -hidden[:, half:])
    torch.testing.assert_close(hidden[:, :, :half], -hidden[:, :, half:])


@pytest.mark.parametrize(
    "build",
    [
        lambda: chain(Attention),
        lambda: chain(Attention, scores="two rows"),
        lambda: chain(Attention, scores="linear"),
        lambda: chain(Attention, scores="bilinear"),
        lambda: chain(DotProduct),
        lambda: LogSoftmax(chain(Attention)),
    ],
)
def test_hand_written_networks_are_balanced_and_look_linear(build):
    model = build()
    initialize_(model, "bal-o", inputs=graph(), generator=seeded())
    laws = discover(model, *graph())
    assert max(float(law.relative_imbalance().abs().max()) for law in laws) <= 1e-6
    for weight in (p for name, p in model.named_parameters() if name.endswith(".w") and p.shape[0] == WIDTH):
        first, second = weight.tensor_split(2)
        torch.testing.assert_close(first, -second)


def test_a_hand_written_layer_gives_the_weights_of_the_layer_that_it_copies():
    """Same seed: bare parameters get what GATConv gets, transposed."""
    known = Chain(*(pyg.GATConv(a, b) for a, b in pairwise([FEATURES, WIDTH, CLASSES]))).double()
    written = chain(Attention, depth=2).double()
    initialize_(known, "bal-o", generator=seeded())
    initialize_(written, "bal-o", inputs=graph(dtype=torch.float64), generator=seeded())
    for layer, copy in zip(known.children(), written.children(), strict=True):
        torch.testing.assert_close(copy.w, layer.lin.weight.t())
    assert not any(bool(copy.a.any()) for copy in list(written.children())[:-1])
