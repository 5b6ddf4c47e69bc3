"""One test per row of the theory's table, and what has to hold for any network."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from equipoise.laws.discover import discover
from equipoise.laws.law import Law
from equipoise.laws.slot import Slot
from equipoise.laws.verify import verify
from tests.networks import (
    CLASSES,
    EDGE_FEATURES,
    FEATURES,
    Chain,
    OmegaGAT,
    edge_features,
    gatv2,
    graph,
    loss,
)

GATV2 = pyg.GATv2Conv


def chain(make, **kwargs):
    """Three layers FEATURES → 8 → 8 → CLASSES."""
    return Chain(make(FEATURES, 8, **kwargs), make(8, 8, **kwargs), make(8, CLASSES, **kwargs))


def found(model, *inputs, **kwargs):
    """The laws as text, after checking that each of them leaves the function alone."""
    laws = discover(model, *inputs, **kwargs)
    assert max(verify(model, laws, *inputs, **kwargs), default=0.0) < 1e-9
    return [str(law) for law in laws]


def mlp(a, b):
    return nn.Sequential(nn.Linear(a, 12), nn.ReLU(), nn.Linear(12, b))


ROWS = {
    "GATv2, shared weights": (
        chain(GATV2, share_weights=True, bias=False),
        [
            "conv1.lin_l.weight[i,:] = conv1.att[i] + conv2.lin_l.weight[:,i]   (8 neurons)",
            "conv2.lin_l.weight[i,:] = conv2.att[i] + conv3.lin_l.weight[:,i]   (8 neurons)",
        ],
    ),
    "GATv2, separate weights": (
        chain(GATV2, bias=False),
        [
            f"conv{k}.lin_l.weight[i,:] + conv{k}.lin_r.weight[i,:] = conv{k}.att[i] "
            f"+ conv{k + 1}.lin_l.weight[:,i] + conv{k + 1}.lin_r.weight[:,i]   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GATv2, separate weights, bias": (
        chain(GATV2),
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
        chain(GATV2, share_weights=True, bias=False, residual=True),
        [
            f"conv{k}.res.weight[i,:] + conv{k}.lin_l.weight[i,:] = conv{k}.att[i] "
            f"+ conv{k + 1}.res.weight[:,i] + conv{k + 1}.lin_l.weight[:,i]   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GAT": (
        chain(pyg.GATConv, bias=False),
        [
            f"conv{k}.lin.weight[i,:] = conv{k}.att_src[i] + conv{k}.att_dst[i] + conv{k + 1}.lin.weight[:,i]"
            "   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GCN, with bias": (
        chain(pyg.GCNConv),
        [f"conv{k}.lin.weight[i,:] + conv{k}.bias[i] = conv{k + 1}.lin.weight[:,i]   (8 neurons)" for k in (1, 2)],
    ),
    "ωGAT": (
        chain(OmegaGAT, share_weights=True, bias=False),
        [f"conv{k}.lin_l.weight[i,:] = conv{k}.att[i] + conv{k + 1}.lin_l.weight[:,i]   (8 neurons)" for k in (1, 2)],
    ),
    "GraphSAGE": (
        chain(pyg.SAGEConv),
        [
            f"conv{k}.lin_l.weight[i,:] + conv{k}.lin_l.bias[i] + conv{k}.lin_r.weight[i,:] = "
            f"conv{k + 1}.lin_l.weight[:,i] + conv{k + 1}.lin_r.weight[:,i]   (8 neurons)"
            for k in (1, 2)
        ],
    ),
    "GraphConv": (
        chain(pyg.GraphConv),
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
    "identity skips: one law for the stream": (
        Chain(*[pyg.GCNConv(a, b, bias=False) for a, b in ((FEATURES, 8), (8, 8), (8, 8), (8, CLASSES))], skip=True),
        [
            "conv1.lin.weight[i,:] + conv2.lin.weight[i,:] + conv3.lin.weight[i,:] = conv2.lin.weight[:,i] "
            "+ conv3.lin.weight[:,i] + conv4.lin.weight[:,i]   (8 neurons)"
        ],
    ),
    "SuperGAT: none": (chain(pyg.SuperGATConv), []),
    "ELU: none": (Chain(GATV2(FEATURES, 8), GATV2(8, 8), GATV2(8, CLASSES), activation=F.elu), []),
    "GELU: none": (Chain(GATV2(FEATURES, 8), GATV2(8, 8), GATV2(8, CLASSES), activation=F.gelu), []),
    "tanh: none": (Chain(pyg.GCNConv(FEATURES, 8), pyg.GCNConv(8, CLASSES), activation=torch.tanh), []),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_table(row):
    model, expected = ROWS[row]
    assert found(model, *graph()) == expected


def test_edge_features_join_the_incoming_side():
    model = chain(GATV2, share_weights=True, bias=False, edge_dim=EDGE_FEATURES)
    assert found(model, *graph(), edge_features()) == [
        f"conv{k}.lin_l.weight[i,:] + conv{k}.lin_edge.weight[i,:] = conv{k}.att[i] + conv{k + 1}.lin_l.weight[:,i]"
        "   (8 neurons)"
        for k in (1, 2)
    ]


@pytest.mark.parametrize("jk", [None, "cat"])
@pytest.mark.parametrize("make", [pyg.GAT, pyg.GCN, pyg.GraphSAGE])
def test_ready_models_of_pyg(make, jk):
    model = make(FEATURES, 8, num_layers=3, out_channels=CLASSES, jk=jk, dropout=0.3)
    laws = discover(model, *graph())
    assert max(verify(model, laws, *graph())) < 1e-9
    assert [law.neurons for law in laws] == [8] * (2 if jk is None else 3)
    for number, law in enumerate(laws):
        assert {slot.name.split(".")[1] for slot in law.incoming} == {str(number)}
        readers = [slot for slot in law.outgoing if slot.name == "lin.weight"]
        assert [slot.start for slot in readers] == ([] if jk is None else [8 * number])


def test_heads_of_a_ready_model():
    model = pyg.GAT(FEATURES, 8, num_layers=3, out_channels=CLASSES, v2=True, heads=4)
    assert [law.neurons for law in discover(model, *graph())] == [8, 8]


def test_mlp_with_unequal_widths_is_ordered_from_input_to_output():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 9), nn.LeakyReLU(), nn.Linear(9, 2))
    assert found(model, torch.randn(7, 5)) == [
        "0.weight[i,:] + 0.bias[i] = 2.weight[:,i]   (4 neurons)",
        "2.weight[i,:] + 2.bias[i] = 4.weight[:,i]   (9 neurons)",
    ]


def test_cnn_with_pooling_and_flattened_channels():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5)
    )
    assert found(model, torch.randn(3, 3, 10, 10)) == [
        "0.weight[i,:,:,:] + 0.bias[i] = 3.weight[:,i,:,:]   (4 neurons)",
        "3.weight[i,:,:,:] + 3.bias[i] = 6.weight[:,4i+k]   (6 neurons)",
    ]


def test_transformer_block_with_stacked_projections():
    model = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True)
    assert found(model, torch.randn(3, 5, 8)) == [
        "norm1.weight[i] + norm1.bias[i] = self_attn.in_proj_weight[:,i]   (8 neurons)",
        "self_attn.in_proj_weight[i,:] + self_attn.in_proj_bias[i] = self_attn.in_proj_weight[8+i,:]   (8 neurons)",
        "self_attn.in_proj_weight[16+i,:] + self_attn.in_proj_bias[16+i] = self_attn.out_proj.weight[:,i]   (8 neurons)",  # noqa: E501
        "norm2.weight[i] + norm2.bias[i] = linear1.weight[:,i]   (8 neurons)",
        "linear1.weight[i,:] + linear1.bias[i] = linear2.weight[:,i]   (16 neurons)",
    ]


class Concatenated(nn.Module):
    """Blocks of unequal width side by side, the input among them."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(10, 8), nn.Linear(8, 12), nn.Linear(12, 6)
        self.out = nn.Linear(10 + 8 + 12 + 6, 3)

    def forward(self, x):
        a = self.a(x).relu()
        b = self.b(a).relu()
        return self.out(torch.cat([x, a, b, self.c(b).relu()], dim=-1))


class Gated(nn.Module):
    """(A x) ⊙ (B x) read by C, and a scalar gain."""

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


class InByOut(nn.Module):
    """Weights stored as (in, out), registered last to first."""

    def __init__(self):
        super().__init__()
        self.second, self.first = nn.Parameter(torch.randn(8, 3)), nn.Parameter(torch.randn(5, 8))

    def forward(self, x):
        return (x @ self.first).relu() @ self.second


OTHERS = {
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
    InByOut: (5, ["first[:,i] = second[i,:]   (8 neurons)"]),
}


def test_rows_that_no_input_looks_up_have_no_law():
    model = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    assert found(model, torch.tensor([3, 5, 7, 11])) == [
        "0.weight[:,i] = 1.weight[:,i]   (8 neurons)",
        "1.weight[i,:] + 1.bias[i] = 3.weight[:,i]   (5 neurons)",
    ]


@pytest.mark.parametrize("make", OTHERS)
def test_networks_that_nobody_here_has_a_list_for(make):
    features, expected = OTHERS[make]
    assert found(make(), torch.randn(9, features)) == expected


def test_weight_normalisation_leaves_a_scale_free_direction():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 3))
    assert found(model, torch.randn(9, 5)) == [
        "0.parametrizations.weight.original0[i] + 0.bias[i] = 2.weight[:,i]   (8 neurons)",
        "0.parametrizations.weight.original1[i,:] = 0   (8 neurons)",
    ]


def test_a_frozen_layer_leaves_a_law_between_its_neighbours():
    model = nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    model[2].requires_grad_(False)
    assert found(model, torch.randn(9, 5)) == []  # a bias that is there and cannot follow
    model[2].bias.data.zero_()
    assert found(model, torch.randn(9, 5)) == ["0.weight[:] = 4.weight[:]   (1 neuron)"]


def test_zero_attention_hides_nothing():
    model = chain(GATV2, share_weights=True, bias=False)
    for parameter in model.parameters():
        parameter.data.zero_()
    x, edge_index = graph()
    assert len(discover(model, torch.zeros_like(x), edge_index)) == 2


def test_erratum_1_the_printed_law_for_separate_weights_fails_where_the_corrected_one_holds():
    model = chain(GATV2, bias=False).double()
    x, edge_index = graph(dtype=torch.float64)
    corrected = discover(model, x, edge_index)[0]
    printed = Law(corrected.incoming, tuple(s for s in corrected.outgoing if s.name != "conv2.lin_r.weight"))
    assert len(printed.outgoing) == len(corrected.outgoing) - 1
    loss(model(x, edge_index)).backward()
    size = float(corrected.incoming[0].gradient_product().abs().max())
    as_printed, as_corrected = (float(law.residual().abs().max()) for law in (printed, corrected))
    message = f"terms {size:.1e}, residual as printed {as_printed:.1e}, corrected {as_corrected:.1e}"
    assert as_printed > 1e-3 * size, message
    assert as_corrected < 1e-14 * size + 1e-17, message


def test_eighty_layers_of_equal_width():
    model = gatv2([32, *[64] * 79, 7], share_weights=True, bias=False)
    laws = discover(model, torch.randn(30, 32), torch.randint(0, 30, (2, 120)))
    assert len(laws) == 79
    assert all(len(law.slots) == 3 and law.neurons == 64 for law in laws)


@st.composite
def stacks(draw):
    depth = draw(st.integers(2, 6))
    hidden = draw(st.lists(st.integers(2, 9), min_size=depth - 1, max_size=depth - 1))
    options = {name: draw(st.booleans()) for name in ("share_weights", "bias", "residual", "concat")}
    return gatv2([FEATURES, *hidden, CLASSES], heads=draw(st.integers(1, 3)), **options).double()


@given(stacks(), st.integers(0, 99))
def test_laws_of_random_stacks_hold_at_random_parameters(model, seed):
    x, edge_index = graph(seed, torch.float64)
    laws = discover(model, x, edge_index)
    assert len(laws) == len(list(model.children())) - 1
    assert max(verify(model, laws, x, edge_index)) < 1e-9
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)
    loss(model(x, edge_index)).backward()
    for law in laws:
        size = max(float(slot.gradient_product().abs().max()) for slot in law.slots)
        assert float(law.residual().abs().max()) < 1e-12 * size


def snapshot(model):
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


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def test_the_model_is_untouched():
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    x = torch.randn(9, 5)
    model(x).sum().backward()
    model[1].eval()
    before, x_before = snapshot(model), x.clone()
    discover(model, x)
    after = snapshot(model)
    assert [key for key in before if not same(before[key], after[key])] == []
    assert torch.equal(x, x_before)


def test_slots_speak_of_the_live_model():
    model = chain(GATV2)
    for law in discover(model, *graph()):
        for slot in law.slots:
            assert isinstance(slot, Slot)
            assert slot.parameter is model.get_parameter(slot.name)
