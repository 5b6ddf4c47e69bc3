"""Laws of every architecture in the table of the theory, and properties of the search on any network."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn

from equipoise.laws.discover import discover, verify
from equipoise.laws.slot import Slot
from tests.networks import (
    CLASSES,
    EDGE_FEATURES,
    FEATURES,
    Chain,
    ReferenceOmegaGAT,
    edge_features,
    gatv2,
    graph,
)

GATV2 = pyg.GATv2Conv


def three_layers(layer_type, **kwargs):
    """A network FEATURES → 8 → 8 → CLASSES."""
    widths = (FEATURES, 8), (8, 8), (8, CLASSES)
    return Chain(*[layer_type(a, b, **kwargs) for a, b in widths])


def verified_laws(model, *inputs, **kwargs):
    """The laws as text, after a check that none of them changes the output."""
    laws = discover(model, *inputs, **kwargs)
    assert max(verify(model, laws, *inputs, **kwargs), default=0.0) < 1e-9
    return [str(law) for law in laws]


def mlp(a, b):
    return nn.Sequential(nn.Linear(a, 12), nn.ReLU(), nn.Linear(12, b))


LAWS_BY_ARCHITECTURE = {
    "GATv2, shared weights": (
        three_layers(GATV2, share_weights=True, bias=False),
        [
            "conv1.lin_l.weight[i,:] = conv1.att[i] + conv2.lin_l.weight[:,i]   (8 neurons)",
            "conv2.lin_l.weight[i,:] = conv2.att[i] + conv3.lin_l.weight[:,i]   (8 neurons)",
        ],
    ),
    "GATv2, separate weights": (
        three_layers(GATV2, bias=False),
        [
            f"conv{k}.lin_l.weight[i,:] + conv{k}.lin_r.weight[i,:] = conv{k}.att[i] "
            f"+ conv{k + 1}.lin_l.weight[:,i] + conv{k + 1}.lin_r.weight[:,i]   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GATv2, separate weights, bias": (
        three_layers(GATV2),
        [
            f"conv{k}.lin_l.weight[i,:] + conv{k}.lin_l.bias[i] + conv{k}.lin_r.weight[i,:] + conv{k}.lin_r.bias[i] "
            f"+ conv{k}.bias[i] = conv{k}.att[i] + conv{k + 1}.lin_l.weight[:,i] + conv{k + 1}.lin_r.weight[:,i]"
            "   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GATv2, 4 heads concatenated": (
        gatv2([FEATURES, 8, 8, CLASSES], heads=4, share_weights=True, bias=False),
        [f"conv{k}.lin_l.weight[i,:] = conv{k}.att[i] + conv{k + 1}.lin_l.weight[:,i]   (32 neurons)" for k in (1, 2)],
    ),
    "GATv2, 4 heads averaged": (
        gatv2([FEATURES, 8, 8, CLASSES], heads=4, concat=False, share_weights=True, bias=False),
        [
            f"conv{k}.lin_l.weight[8h+i,:] = conv{k}.att[:,i] + conv{k + 1}.lin_l.weight[:,i]   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GATv2, learned linear skip": (
        three_layers(GATV2, share_weights=True, bias=False, residual=True),
        [
            f"conv{k}.res.weight[i,:] + conv{k}.lin_l.weight[i,:] = conv{k}.att[i] "
            f"+ conv{k + 1}.res.weight[:,i] + conv{k + 1}.lin_l.weight[:,i]   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GAT": (
        three_layers(pyg.GATConv, bias=False),
        [
            f"conv{k}.lin.weight[i,:] = conv{k}.att_src[i] + conv{k}.att_dst[i] + conv{k + 1}.lin.weight[:,i]"
            "   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GCN, with bias": (
        three_layers(pyg.GCNConv),
        [f"conv{k}.lin.weight[i,:] + conv{k}.bias[i] = conv{k + 1}.lin.weight[:,i]   (8 neurons)" for k in (1, 2)],
    ),
    "ωGAT": (
        three_layers(ReferenceOmegaGAT, share_weights=True, bias=False),
        [f"conv{k}.lin_l.weight[i,:] = conv{k}.att[i] + conv{k + 1}.lin_l.weight[:,i]   (8 neurons)" for k in (1, 2)],
    ),
    "GraphSAGE": (
        three_layers(pyg.SAGEConv),
        [
            f"conv{k}.lin_l.weight[i,:] + conv{k}.lin_l.bias[i] + conv{k}.lin_r.weight[i,:] = "
            f"conv{k + 1}.lin_l.weight[:,i] + conv{k + 1}.lin_r.weight[:,i]   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GraphConv": (
        three_layers(pyg.GraphConv),
        [
            f"conv{k}.lin_rel.weight[i,:] + conv{k}.lin_rel.bias[i] + conv{k}.lin_root.weight[i,:] = "
            f"conv{k + 1}.lin_rel.weight[:,i] + conv{k + 1}.lin_root.weight[:,i]   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GIN": (
        Chain(pyg.GINConv(mlp(FEATURES, 8), train_eps=True), pyg.GINConv(mlp(8, CLASSES))),
        [
            "conv1.nn.0.weight[i,:] + conv1.nn.0.bias[i] = conv1.nn.2.weight[:,i]   (12 neurons)",
            "conv1.nn.2.weight[i,:] + conv1.nn.2.bias[i] = conv2.nn.0.weight[:,i]   (8 neurons)",
            "conv2.nn.0.weight[i,:] + conv2.nn.0.bias[i] = conv2.nn.2.weight[:,i]   (12 neurons)",
        ],
    ),
    "graph transformer": (
        Chain(pyg.TransformerConv(FEATURES, 8, bias=False), pyg.TransformerConv(8, CLASSES, bias=False)),
        [
            "conv1.lin_key.weight[i,:] = conv1.lin_query.weight[i,:]   (8 neurons)",
            "conv1.lin_value.weight[i,:] + conv1.lin_skip.weight[i,:] = conv2.lin_query.weight[:,i] "
            "+ conv2.lin_key.weight[:,i] + conv2.lin_value.weight[:,i] + conv2.lin_skip.weight[:,i]   (8 neurons)",
            "conv2.lin_key.weight[i,:] = conv2.lin_query.weight[i,:]   (3 neurons)",
        ],
    ),
    "identity skips: one law for the residual stream": (
        Chain(*[pyg.GCNConv(a, b, bias=False) for a, b in ((FEATURES, 8), (8, 8), (8, 8), (8, CLASSES))], skip=True),
        [
            "conv1.lin.weight[i,:] + conv2.lin.weight[i,:] + conv3.lin.weight[i,:] = conv2.lin.weight[:,i] "
            "+ conv3.lin.weight[:,i] + conv4.lin.weight[:,i]   (8 neurons)"
        ],
    ),
    "SuperGAT: none": (three_layers(pyg.SuperGATConv), []),
    "ELU: none": (Chain(GATV2(FEATURES, 8), GATV2(8, 8), GATV2(8, CLASSES), activation=F.elu), []),
    "GELU: none": (Chain(GATV2(FEATURES, 8), GATV2(8, 8), GATV2(8, CLASSES), activation=F.gelu), []),
    "tanh: none": (Chain(pyg.GCNConv(FEATURES, 8), pyg.GCNConv(8, CLASSES), activation=torch.tanh), []),
}


@pytest.mark.parametrize("architecture", LAWS_BY_ARCHITECTURE)
def test_laws_of_known_architectures(architecture):
    model, expected = LAWS_BY_ARCHITECTURE[architecture]
    assert verified_laws(model, *graph()) == expected


def test_weights_of_edge_features_are_incoming():
    model = three_layers(GATV2, share_weights=True, bias=False, edge_dim=EDGE_FEATURES)
    assert verified_laws(model, *graph(), edge_features()) == [
        f"conv{k}.lin_l.weight[i,:] + conv{k}.lin_edge.weight[i,:] = conv{k}.att[i] + conv{k + 1}.lin_l.weight[:,i]"
        "   (8 neurons)"
        for k in (1, 2)
    ]


@pytest.mark.parametrize("jk", [None, "cat"])
@pytest.mark.parametrize("model_type", [pyg.GAT, pyg.GCN, pyg.GraphSAGE])
def test_models_of_pyg(model_type, jk):
    model = model_type(FEATURES, 8, num_layers=3, out_channels=CLASSES, jk=jk, dropout=0.3)
    laws = discover(model, *graph())
    assert max(verify(model, laws, *graph())) < 1e-9
    assert [law.neurons for law in laws] == [8] * (2 if jk is None else 3)
    for number, law in enumerate(laws):
        assert {slot.name.split(".")[1] for slot in law.incoming} == {str(number)}
        readers = [slot for slot in law.outgoing if slot.name == "lin.weight"]
        assert [slot.start for slot in readers] == ([] if jk is None else [8 * number])


def test_pyg_model_with_several_heads():
    model = pyg.GAT(FEATURES, 8, num_layers=3, out_channels=CLASSES, v2=True, heads=4)
    assert [law.neurons for law in discover(model, *graph())] == [8, 8]


def test_laws_are_ordered_from_input_to_output():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 9), nn.LeakyReLU(), nn.Linear(9, 2))
    assert verified_laws(model, torch.randn(7, 5)) == [
        "0.weight[i,:] + 0.bias[i] = 2.weight[:,i]   (4 neurons)",
        "2.weight[i,:] + 2.bias[i] = 4.weight[:,i]   (9 neurons)",
    ]


def test_cnn_with_pooling_and_flattened_channels():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5)
    )
    assert verified_laws(model, torch.randn(3, 3, 10, 10)) == [
        "0.weight[i,:,:,:] + 0.bias[i] = 3.weight[:,i,:,:]   (4 neurons)",
        "3.weight[i,:,:,:] + 3.bias[i] = 6.weight[:,4i+k]   (6 neurons)",
    ]


def test_transformer_block_with_stacked_projections():
    model = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True)
    assert verified_laws(model, torch.randn(3, 5, 8)) == [
        "norm1.weight[i] + norm1.bias[i] = self_attn.in_proj_weight[:,i]   (8 neurons)",
        "self_attn.in_proj_weight[i,:] + self_attn.in_proj_bias[i] = self_attn.in_proj_weight[8+i,:]   (8 neurons)",
        "self_attn.in_proj_weight[16+i,:] + self_attn.in_proj_bias[16+i] = self_attn.out_proj.weight[:,i]   (8 neurons)",  # noqa: E501
        "norm2.weight[i] + norm2.bias[i] = linear1.weight[:,i]   (8 neurons)",
        "linear1.weight[i,:] + linear1.bias[i] = linear2.weight[:,i]   (16 neurons)",
    ]


class Concatenated(nn.Module):
    """Concatenates the input and three layers of unequal width."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(10, 8), nn.Linear(8, 12), nn.Linear(12, 6)
        self.out = nn.Linear(10 + 8 + 12 + 6, 3)

    def forward(self, x):
        a = self.a(x).relu()
        b = self.b(a).relu()
        return self.out(torch.cat([x, a, b, self.c(b).relu()], dim=-1))


class Gated(nn.Module):
    """gain · C (A x ⊙ B x) with a scalar gain."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(m, n, bias=False) for m, n in ((5, 8), (5, 8), (8, 3)))
        self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.gain * self.c(self.a(x) * self.b(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 3)

    def forward(self, x):
        h = self.a(x).relu()
        for _ in range(3):
            h = self.b(h).relu()
        return self.c(h)


class TransposedWeights(nn.Module):
    """Weights of shape (in, out), registered in reverse order."""

    def __init__(self):
        super().__init__()
        self.second, self.first = nn.Parameter(torch.randn(8, 3)), nn.Parameter(torch.randn(5, 8))

    def forward(self, x):
        return (x @ self.first).relu() @ self.second


LAWS_OF_CUSTOM_MODULES = {
    Concatenated: (
        10,
        [
            "a.weight[i,:] + a.bias[i] = b.weight[:,i] + out.weight[:,10+i]   (8 neurons)",
            "b.weight[i,:] + b.bias[i] = c.weight[:,i] + out.weight[:,18+i]   (12 neurons)",
            "c.weight[i,:] + c.bias[i] = out.weight[:,30+i]   (6 neurons)",
        ],
    ),
    Gated: (
        5,
        [
            "a.weight[i,:] = b.weight[i,:]   (8 neurons)",
            "b.weight[i,:] = c.weight[:,i]   (8 neurons)",
            "c.weight[:] = gain   (1 neuron)",
        ],
    ),
    Recurrent: (5, ["a.weight[i,:] + a.bias[i] + b.weight[i,:] = b.weight[:,i] + c.weight[:,i]   (8 neurons)"]),
    TransposedWeights: (5, ["first[:,i] = second[i,:]   (8 neurons)"]),
}


def test_unused_embedding_rows_have_no_law():
    model = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    assert verified_laws(model, torch.tensor([3, 5, 7, 11])) == [
        "0.weight[:,i] = 1.weight[:,i]   (8 neurons)",
        "1.weight[i,:] + 1.bias[i] = 3.weight[:,i]   (5 neurons)",
    ]


@pytest.mark.parametrize("module_type", LAWS_OF_CUSTOM_MODULES)
def test_custom_modules(module_type):
    features, expected = LAWS_OF_CUSTOM_MODULES[module_type]
    assert verified_laws(module_type(), torch.randn(9, features)) == expected


def test_direction_of_weight_normalisation_is_scale_free():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 3))
    assert verified_laws(model, torch.randn(9, 5)) == [
        "0.parametrizations.weight.original0[i] + 0.bias[i] = 2.weight[:,i]   (8 neurons)",
        "0.parametrizations.weight.original1[i,:] = 0   (8 neurons)",
    ]


def test_law_across_a_frozen_layer():
    model = nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    model[2].requires_grad_(False)
    assert verified_laws(model, torch.randn(9, 5)) == []  # the frozen bias cannot be rescaled
    model[2].bias.data.zero_()
    assert verified_laws(model, torch.randn(9, 5)) == ["0.weight[:] = 4.weight[:]   (1 neuron)"]


def test_zero_parameters_and_inputs_hide_no_law():
    model = three_layers(GATV2, share_weights=True, bias=False)
    for parameter in model.parameters():
        parameter.data.zero_()
    x, edge_index = graph()
    assert len(discover(model, torch.zeros_like(x), edge_index)) == 2


def test_narrow_layers_that_are_dead_in_the_first_sample():
    model = gatv2([FEATURES, 2, 9, 4, 6, 2, CLASSES])
    assert len(discover(model, *graph())) == 5


def test_deep_network_of_equal_widths():
    model = gatv2([32, *[64] * 79, 7], share_weights=True, bias=False)
    laws = discover(model, torch.randn(30, 32), torch.randint(0, 30, (2, 120)))
    assert len(laws) == 79
    assert all(len(law.slots) == 3 and law.neurons == 64 for law in laws)


def full_state(model):
    return {
        "state": copy.deepcopy(model.state_dict()),
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "dtypes": [p.dtype for p in model.parameters()],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].copy(),  # noqa: NPY002
        "python": random.getstate(),
    }


def deep_equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(deep_equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(deep_equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def test_discover_does_not_modify_the_model():
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    x = torch.randn(9, 5)
    model(x).sum().backward()
    model[1].eval()
    before, x_before = full_state(model), x.clone()
    discover(model, x)
    after = full_state(model)
    assert [key for key in before if not deep_equal(before[key], after[key])] == []
    assert torch.equal(x, x_before)


def test_slots_refer_to_the_parameters_of_the_model():
    model = three_layers(GATV2)
    for law in discover(model, *graph()):
        for slot in law.slots:
            assert isinstance(slot, Slot)
            assert slot.parameter is model.get_parameter(slot.name)
