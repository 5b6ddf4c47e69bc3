import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from equipoise.errors import ArchitectureError, BalanceError, ChoiceError, ModelError, PartsError
from equipoise.init.balance import balance_
from equipoise.init.parts import PARTS, Parts
from equipoise.init.schemes import SCHEMES, initialize_
from equipoise.laws.discover import discover
from equipoise.nn.stack import KINDS, Stack
from tests.networks import CLASSES, FEATURES, graph

BALANCED = [name for name, scheme in SCHEMES.items() if scheme.balanced]
LOOKS_LINEAR = [name for name, scheme in SCHEMES.items() if scheme.looks_linear]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def stack(kind, heads=1, **options):
    heads = 1 if kind == "gcn" else heads
    return Stack(kind, [FEATURES, 8, 8, 8, CLASSES], heads=heads, **options)


def worst(model, *inputs):
    laws = discover(model, *(inputs or graph()))
    assert laws, "no law: the test shows nothing"
    return max(float(law.relative_imbalance().abs().max()) for law in laws)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_on_every_kind(scheme, kind, heads):
    model = stack(kind, heads)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    assert initialize_(model, scheme, generator=seeded()) is model
    assert {name: p.shape for name, p in model.named_parameters()} == shapes
    assert bool(torch.isfinite(model(*graph())).all())
    attention = [p for name, p in model.named_parameters() if ".att" in name]
    assert all(bool(p.any()) == SCHEMES[scheme].attention for p in attention)
    if SCHEMES[scheme].balanced:
        assert worst(model) <= 1e-6
    elif kind != "lipschitz-gat" and "identity" not in scheme:  # hidden identities are balanced among themselves
        assert worst(model) > 1e-2


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
def test_balanced_schemes_are_balanced_whatever_the_options(scheme, direction, options):
    model = initialize_(stack("gatv2", **options), scheme, direction=direction, generator=seeded())
    assert worst(model) <= 1e-6


@pytest.mark.parametrize("scheme", ["bal-x", "bal-o"])
def test_unequal_widths(scheme):
    model = initialize_(Stack("gatv2", [FEATURES, 12, 6, 16, CLASSES]), scheme, generator=seeded())
    assert worst(model) <= 1e-6


@pytest.mark.parametrize("scheme", LOOKS_LINEAR)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("concat", [True, False])
def test_looks_linear_networks_are_linear_at_the_start(scheme, kind, heads, concat):
    model = initialize_(stack(kind, heads, concat=concat), scheme, generator=seeded()).double()
    x, y = torch.randn(2, 10, FEATURES, dtype=torch.float64)
    none = torch.empty(2, 0, dtype=torch.long)  # self-loops only
    torch.testing.assert_close(model(2 * x - 3 * y, none), 2 * model(x, none) - 3 * model(y, none))
    assert float(model(x, none).detach().abs().max()) > 1e-3
    plain = initialize_(stack(kind, heads, concat=concat), "xav", generator=seeded()).double()
    assert not torch.allclose(plain(2 * x - 3 * y, none), 2 * plain(x, none) - 3 * plain(y, none))


def test_blocks_are_orthogonal_and_balancing_keeps_hidden_ones():
    """Rows of W¹ to norm √2 make U¹ √2 times orthogonal; hidden blocks have columns of norm √2 already."""
    plain, balanced = (
        initialize_(stack("gatv2").double(), scheme, generator=seeded()) for scheme in ("llortho", "bal-o")
    )
    for layer in (1, 2):
        W = plain.convs[layer].lin_l.weight
        U = W[:4, :4]
        torch.testing.assert_close(U @ U.T, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-14)
        torch.testing.assert_close(W, torch.cat([torch.cat([U, -U], 1), torch.cat([-U, U], 1)]))
        torch.testing.assert_close(balanced.convs[layer].lin_l.weight, W)
    first = balanced.convs[0].lin_l.weight
    torch.testing.assert_close(first.square().sum(1), torch.full((8,), 2.0, dtype=torch.float64))
    last = balanced.convs[3].lin_l.weight
    torch.testing.assert_close(last.square().sum(0), torch.full((8,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize(("scheme", "beta"), [("bal-identity", 1.0), ("bal-llidentity", 2.0)])
def test_balanced_identities_keep_their_hidden_layers(scheme, beta):
    model = initialize_(stack("gcn").double(), scheme, generator=seeded())
    hidden = model.convs[1].lin.weight
    torch.testing.assert_close(hidden, hidden.round())
    assert int((hidden != 0).sum()) == 8 * beta
    torch.testing.assert_close(model.convs[0].lin.weight.square().sum(1), torch.full((8,), beta, dtype=torch.float64))


def test_attention_has_the_variance_of_the_paper():
    model = initialize_(Stack("gatv2", [5, 2000, 2000, 3]), "xav", generator=seeded())
    assert float(model.convs[0].att.var()) == pytest.approx(2 / 2001, rel=0.1)
    assert float(model.convs[1].lin_l.weight.var()) == pytest.approx(2 / 4000, rel=0.01)


@pytest.mark.parametrize("beta", [0.5, torch.linspace(0.5, 3.0, 8)])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_beta_sets_the_norm_that_balancing_starts_from(beta, direction):
    model = initialize_(stack("gcn"), "bal-x", beta=beta, direction=direction, generator=seeded())
    conv, axis = (model.convs[0], 1) if direction == "forward" else (model.convs[3], 0)
    end = conv.lin.weight.square().sum(axis)
    torch.testing.assert_close(end, torch.as_tensor(beta).expand(8))
    assert worst(model) <= 1e-6


def test_parameters_stay_the_same_objects_and_an_optimizer_stays_valid():
    model = stack("gatv2")
    before = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    initialize_(model, "bal-o")
    assert all(p is before[name] and p.requires_grad for name, p in model.named_parameters())
    model(*graph()).sum().backward()
    old = model.convs[0].lin_l.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model.convs[0].lin_l.weight, old)


def test_the_generator_alone_decides():
    first = initialize_(stack("gatv2"), "bal-o", generator=seeded()).state_dict()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    second = initialize_(stack("gatv2"), "bal-o", generator=seeded()).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    torch.set_rng_state(state)
    third = initialize_(copy.deepcopy(stack("gatv2")), "bal-o", generator=seeded(1)).state_dict()
    assert not torch.equal(first["convs.0.lin_l.weight"], third["convs.0.lin_l.weight"])


def test_without_a_generator_the_global_seed_decides():
    results = []
    for _ in range(2):
        model = stack("gatv2")
        torch.manual_seed(3)
        results.append(initialize_(model, "bal-o").convs[0].lin_l.weight.clone())
    assert torch.equal(*results)


class HandWritten(nn.Module):
    """Registered in another order than it runs, with linear ends and a batch norm that has nothing to do with it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, CLASSES)
        self.second, self.first = pyg.GATv2Conv(8, 4, heads=2), pyg.GATv2Conv(8, 8, concat=False, heads=2)
        self.encode = pyg.Linear(FEATURES, 8)

    def forward(self, x, edge_index):
        h = self.encode(x).relu()
        for conv in (self.first, self.second):
            h = conv(h, edge_index).relu()
        return self.head(h)


STOCK = {
    "GAT": lambda: pyg.GAT(FEATURES, 8, num_layers=4, out_channels=CLASSES, v2=True, act="relu"),
    "GAT v1, heads": lambda: pyg.GAT(FEATURES, 8, num_layers=4, out_channels=CLASSES, heads=4, dropout=0.5),
    "GCN": lambda: pyg.GCN(FEATURES, 8, num_layers=4, out_channels=CLASSES),
    "GraphSAGE": lambda: pyg.GraphSAGE(FEATURES, 8, num_layers=4, out_channels=CLASSES),
    "GAT, jumping knowledge": lambda: pyg.GAT(FEATURES, 8, 4, CLASSES, v2=True, act="relu", jk="cat"),
    "GraphSAGE, jumping knowledge": lambda: pyg.GraphSAGE(FEATURES, 8, 3, CLASSES, jk="cat"),
    "GCN, largest of all layers": lambda: pyg.GCN(FEATURES, 8, 3, CLASSES, jk="max"),
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
@pytest.mark.parametrize("make", STOCK)
def test_stock_and_hand_written_models(make, scheme, direction):
    model = initialize_(STOCK[make](), scheme, direction=direction, generator=seeded())
    assert worst(model) <= 1e-6


def test_jumping_knowledge_looks_linear_too():
    model = initialize_(STOCK["GAT, jumping knowledge"](), "bal-o", generator=seeded()).double()
    x, y = torch.randn(2, 10, FEATURES, dtype=torch.float64)
    none = torch.empty(2, 0, dtype=torch.long)
    torch.testing.assert_close(model(2 * x - 3 * y, none), 2 * model(x, none) - 3 * model(y, none))


def test_layers_are_taken_as_they_run():
    model = initialize_(HandWritten(), "bal-x", generator=seeded())
    torch.testing.assert_close(model.encode.weight.square().sum(1), torch.full((8,), 2.0))


def test_balance_alone():
    model = stack("gatv2", bias=True)
    assert worst(model) > 1e-2
    weight = model.convs[1].lin_l.weight.detach().clone()
    assert balance_(model, beta=1.0) is model
    assert worst(model) <= 1e-6
    ratio = model.convs[1].lin_l.weight / weight
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))  # columns were scaled, nothing else


def unchanged(model, kind, message, scheme="bal-o", call=initialize_, **options):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(kind, match=message) as caught:
        call(model, **({} if call is balance_ else {"scheme": scheme}), **options)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    return caught.value


def test_odd_hidden_width():
    model = Stack("gatv2", [FEATURES, 8, 7, CLASSES])
    error = unchanged(model, ArchitectureError, "7 is odd")
    assert "convs.1" in str(error)
    assert "8" in error.remedy
    initialize_(model, "bal-x")  # which needs no pairs


def test_lazy_layer():
    model = pyg.GCN(-1, 8, num_layers=2, out_channels=CLASSES)
    with pytest.raises(ModelError, match=r"lazy(.|\n)*convs.0"):
        initialize_(model)


def test_unknown_layer_says_how_to_register_it():
    model = pyg.Sequential("x, edge_index", [(pyg.TransformerConv(4, 4), "x, edge_index -> x")])
    error = unchanged(model, PartsError, "what a TransformerConv is made of")
    assert "PARTS[TransformerConv]" in error.remedy


def test_a_registered_layer_is_known():
    class Mine(pyg.MessagePassing):
        def __init__(self, m, n):
            super().__init__(aggr="mean")
            self.w = nn.Parameter(torch.randn(n, m))

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x @ self.w.T)

    PARTS[Mine] = lambda conv: Parts(features=(conv.w,))
    try:
        model = pyg.Sequential(
            "x, edge_index",
            [(Mine(FEATURES, 8), "x, edge_index -> x"), nn.ReLU(), (Mine(8, CLASSES), "x, edge_index -> x")],
        )
        initialize_(model, "bal-o")
        assert worst(model) <= 1e-6
    finally:
        del PARTS[Mine]


@pytest.mark.parametrize("scheme", ["bal-identity", "bal-llidentity"])
def test_zero_columns(scheme):
    error = unchanged(Stack("gcn", [FEATURES, 8, 4, 8, CLASSES]), BalanceError, "norm 0.0", scheme)
    assert "convs.1" in str(error)


def test_zero_rows():
    model = stack("gcn")
    model.convs[0].lin.weight.data[3] = 0.0
    unchanged(model, BalanceError, r"row 3 of the feature weights(.|\n)*convs.0 \(1 of 8 rows\)", call=balance_)


def test_not_a_chain():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out = nn.Linear(FEATURES, 8), nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

        def forward(self, x, _):
            return self.out(self.a(x).relu() + self.b(x).relu())

    unchanged(Branches(), PartsError, "no chain: b reads 6 features, a writes 8")


def test_weights_that_nobody_knows():
    model = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4))
    unchanged(model, PartsError, "belong to no known layer")
    with pytest.raises(PartsError, match="no layer that can be initialised"):
        initialize_(nn.ReLU())
    with pytest.raises(ModelError):
        initialize_("model")


def test_names():
    unchanged(stack("gcn"), ChoiceError, r"unknown scheme 'bal_o'(.|\n)*did you mean 'bal-o'", scheme="bal_o")
    unchanged(stack("gcn"), ChoiceError, "unknown direction", direction="backward")
    unchanged(stack("gcn"), BalanceError, "beta must be", beta=-1.0)
    unchanged(stack("gcn"), BalanceError, "beta must be", beta=torch.ones(3))
