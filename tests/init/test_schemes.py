import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from equipoise.errors import (
    ArchitectureError,
    BalanceError,
    ChoiceError,
    ForwardError,
    InitializationError,
    LawError,
)
from equipoise.init.schemes import SCHEMES, initialize_
from equipoise.laws.discover import discover
from equipoise.nn.stack import KINDS, Stack
from tests.init.helpers import HandWritten, assert_raises_and_unchanged, max_relative_imbalance, seeded, stack
from tests.networks import CLASSES, FEATURES, graph

BALANCED = [name for name, scheme in SCHEMES.items() if scheme.balanced and scheme.draws]
LOOKS_LINEAR = [name for name, scheme in SCHEMES.items() if scheme.looks_linear]


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_on_every_layer_kind(scheme, kind, heads):
    model = stack(kind, heads)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    assert initialize_(model, scheme, generator=seeded()) is model
    assert {name: p.shape for name, p in model.named_parameters()} == shapes
    assert bool(torch.isfinite(model(*graph())).all())
    attention = [p for name, p in model.named_parameters() if ".att" in name]
    assert all(bool(p.any()) == SCHEMES[scheme].attention for p in attention)
    if SCHEMES[scheme].balanced:
        assert max_relative_imbalance(model) <= 1e-6
    elif kind != "lipschitz-gat" and "identity" not in scheme:  # hidden identity layers are balanced with each other
        assert max_relative_imbalance(model) > 1e-2


@pytest.mark.parametrize("scheme", BALANCED)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 4, "concat": False},
        {"share_weights": False},
        {"bias": True},
        {"skip": "linear"},
        {"skip": "identity"},
        {"heads": 3, "share_weights": False, "bias": True, "skip": "linear"},
    ],
    ids=str,
)
def test_balanced_schemes_are_balanced_for_all_options(scheme, direction, options):
    model = initialize_(stack("gatv2", **options), scheme, direction=direction, generator=seeded())
    assert max_relative_imbalance(model) <= 1e-6


@pytest.mark.parametrize("scheme", ["bal-x", "bal-o"])
def test_unequal_widths(scheme):
    model = initialize_(Stack("gatv2", [FEATURES, 12, 6, 16, CLASSES]), scheme, generator=seeded())
    assert max_relative_imbalance(model) <= 1e-6


@pytest.mark.parametrize("scheme", LOOKS_LINEAR)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "transformer"])  # has no self-loops
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("concat", [True, False])
def test_looks_linear_networks_are_linear_at_initialisation(scheme, kind, heads, concat):
    model = initialize_(stack(kind, heads, concat=concat), scheme, generator=seeded()).double()
    x, y = torch.randn(2, 10, FEATURES, dtype=torch.float64)
    no_edges = torch.empty(2, 0, dtype=torch.long)  # self-loops only
    torch.testing.assert_close(model(2 * x - 3 * y, no_edges), 2 * model(x, no_edges) - 3 * model(y, no_edges))
    assert float(model(x, no_edges).detach().abs().max()) > 1e-3
    xavier = initialize_(stack(kind, heads, concat=concat), "xav", generator=seeded()).double()
    assert not torch.allclose(xavier(2 * x - 3 * y, no_edges), 2 * xavier(x, no_edges) - 3 * xavier(y, no_edges))


def test_blocks_are_orthogonal_and_balancing_keeps_hidden_blocks():
    """Rows of W¹ with norm √2 make U¹ √2 times orthogonal; columns of hidden blocks have norm √2 already."""
    unbalanced, balanced = (
        initialize_(stack("gatv2").double(), scheme, generator=seeded()) for scheme in ("llortho", "bal-o")
    )
    for layer in (1, 2):
        W = unbalanced.convs[layer].lin_l.weight
        U = W[:4, :4]
        torch.testing.assert_close(U @ U.T, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-14)
        torch.testing.assert_close(W, torch.cat([torch.cat([U, -U], 1), torch.cat([-U, U], 1)]))
        torch.testing.assert_close(balanced.convs[layer].lin_l.weight, W)
    first = balanced.convs[0].lin_l.weight
    torch.testing.assert_close(first.square().sum(1), torch.full((8,), 2.0, dtype=torch.float64))
    last = balanced.convs[3].lin_l.weight
    torch.testing.assert_close(last.square().sum(0), torch.full((8,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize(("scheme", "beta"), [("bal-identity", 1.0), ("bal-llidentity", 2.0)])
def test_balancing_identity_schemes_keeps_hidden_layers(scheme, beta):
    model = initialize_(stack("gcn").double(), scheme, generator=seeded())
    hidden = model.convs[1].lin.weight
    torch.testing.assert_close(hidden, hidden.round())
    assert int((hidden != 0).sum()) == 8 * beta
    torch.testing.assert_close(model.convs[0].lin.weight.square().sum(1), torch.full((8,), beta, dtype=torch.float64))


def test_attention_variance_matches_the_paper():
    model = initialize_(Stack("gatv2", [5, 2000, 2000, 3]), "xav", generator=seeded())
    assert float(model.convs[0].att.var()) == pytest.approx(2 / 2001, rel=0.1)
    assert float(model.convs[1].lin_l.weight.var()) == pytest.approx(2 / 4000, rel=0.01)


def test_parameters_keep_identity_and_an_optimizer_stays_valid():
    model = stack("gatv2")
    before = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    initialize_(model, "bal-o")
    assert all(p is before[name] and p.requires_grad for name, p in model.named_parameters())
    model(*graph()).sum().backward()
    old = model.convs[0].lin_l.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model.convs[0].lin_l.weight, old)


def test_only_the_generator_determines_the_weights():
    first = initialize_(stack("gatv2"), "bal-o", generator=seeded()).state_dict()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    second = initialize_(stack("gatv2"), "bal-o", generator=seeded()).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    torch.set_rng_state(state)
    third = initialize_(copy.deepcopy(stack("gatv2")), "bal-o", generator=seeded(1)).state_dict()
    assert not torch.equal(first["convs.0.lin_l.weight"], third["convs.0.lin_l.weight"])


def test_without_a_generator_the_global_seed_determines_the_weights():
    results = []
    for _ in range(2):
        model = stack("gatv2")
        torch.manual_seed(3)
        results.append(initialize_(model, "bal-o").convs[0].lin_l.weight.clone())
    assert torch.equal(*results)


MODELS = {
    "GAT": lambda: pyg.GAT(FEATURES, 8, num_layers=4, out_channels=CLASSES, v2=True, act="relu"),
    "GAT v1, heads": lambda: pyg.GAT(FEATURES, 8, num_layers=4, out_channels=CLASSES, heads=4, dropout=0.5),
    "GCN": lambda: pyg.GCN(FEATURES, 8, num_layers=4, out_channels=CLASSES),
    "GraphSAGE": lambda: pyg.GraphSAGE(FEATURES, 8, num_layers=4, out_channels=CLASSES),
    "GAT, jumping knowledge": lambda: pyg.GAT(FEATURES, 8, 4, CLASSES, v2=True, act="relu", jk="cat"),
    "GraphSAGE, jumping knowledge": lambda: pyg.GraphSAGE(FEATURES, 8, 3, CLASSES, jk="cat"),
    "GCN, jumping knowledge by maximum": lambda: pyg.GCN(FEATURES, 8, 3, CLASSES, jk="max"),
    "Sequential": lambda: pyg.Sequential(
        "x, edge_index",
        [
            (pyg.GATv2Conv(FEATURES, 8), "x, edge_index -> x"),
            nn.ReLU(),
            (pyg.GCNConv(8, 6), "x, edge_index -> x"),
            nn.ReLU(),
            (pyg.SAGEConv(6, CLASSES), "x, edge_index -> x"),
        ],
    ),
    "hand-written": HandWritten,
}


@pytest.mark.parametrize("scheme", ["bal-x", "bal-o"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("name", MODELS)
def test_pyg_and_hand_written_models(name, scheme, direction):
    model = initialize_(MODELS[name](), scheme, direction=direction, generator=seeded())
    assert max_relative_imbalance(model) <= 1e-6


def test_jumping_knowledge_looks_linear():
    model = initialize_(MODELS["GAT, jumping knowledge"](), "bal-o", generator=seeded()).double()
    x, y = torch.randn(2, 10, FEATURES, dtype=torch.float64)
    no_edges = torch.empty(2, 0, dtype=torch.long)
    torch.testing.assert_close(model(2 * x - 3 * y, no_edges), 2 * model(x, no_edges) - 3 * model(y, no_edges))


def test_odd_hidden_width():
    model = Stack("gatv2", [FEATURES, 8, 7, CLASSES])
    error = assert_raises_and_unchanged(model, ArchitectureError, "width 7 is odd")
    assert "convs.1" in str(error)
    assert "8" in error.remedy
    initialize_(model, "bal-x")  # needs no mirrored pairs


def test_invalid_arguments():
    assert_raises_and_unchanged(
        stack("gcn"), ChoiceError, r"unknown scheme 'bal_o'(.|\n)*did you mean 'bal-o'", scheme="bal_o"
    )
    assert_raises_and_unchanged(stack("gcn"), ChoiceError, "unknown direction", direction="backward")
    assert_raises_and_unchanged(stack("gcn"), BalanceError, "beta must be", beta=-1.0)
    assert_raises_and_unchanged(stack("gcn"), BalanceError, "beta must be", beta=float("inf"))
    assert_raises_and_unchanged(stack("gcn"), BalanceError, "beta must be", beta=torch.ones(3))
    assert_raises_and_unchanged(stack("gcn"), BalanceError, "beta must be", beta="2")
    for scheme in ("xav", "rebalanced"):
        assert_raises_and_unchanged(stack("gcn"), InitializationError, "takes no beta", scheme=scheme, beta=2.0)
    assert_raises_and_unchanged(stack("gcn"), ChoiceError, "unknown direction", scheme="xav", direction="backward")
    assert_raises_and_unchanged(stack("gcn"), InitializationError, "generator must be", generator=3)
    assert_raises_and_unchanged(stack("gcn"), ChoiceError, "unknown scheme", scheme=["bal-o"])


def test_weights_that_are_not_finite_are_named():
    x, edge_index = graph()
    model = Stack("gatv2", [FEATURES, 8, 8, CLASSES]).double()
    with torch.no_grad():
        model.convs[1].lin_l.weight[0, 0] = torch.nan
    with pytest.raises(BalanceError, match="not finite"):
        initialize_(model, "rebalanced", inputs=(x, edge_index))
    assert model.convs[1].lin_l.weight.isnan().sum() == 1


def test_laws_of_another_model_are_refused():
    x, edge_index = graph()
    one, other = (Stack("gatv2", [FEATURES, 8, 8, CLASSES], norm="layer").double() for _ in range(2))
    laws, before = discover(one, x, edge_index), copy.deepcopy(one.state_dict())
    assert_raises_and_unchanged(other, LawError, "belongs to another model", laws=laws)
    assert_raises_and_unchanged(other, LawError, "expected a list of laws", laws="abc")
    torch.testing.assert_close(one.state_dict(), before, rtol=0, atol=0)


def test_inputs_made_in_inference_mode():
    model = Stack("gatv2", [5, 8, 3])
    with torch.inference_mode():
        x, edge_index = torch.rand(4, 5), torch.tensor([[0, 1], [1, 2]])
    assert initialize_(model, "bal-o", inputs=(x, edge_index)) is model


def test_inputs_without_values_are_named():
    x, edge_index = graph()
    model = stack("gatv2", 3)
    with pytest.raises(ForwardError, match="device meta"):
        initialize_(model, "bal-o", inputs=(x.to("meta"), edge_index))


def test_layer_without_neurons_is_named():
    model = nn.Sequential(nn.Linear(3, 0), nn.ReLU(), nn.Linear(0, 2))
    with pytest.raises(BalanceError, match=r"no neurons(.|\n)*where: +0"):
        initialize_(model, "bal-o")
