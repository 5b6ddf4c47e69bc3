"""Stacks: structure, agreement with PyG, options and errors."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, TransformerConv

from equipoise.errors import ArchitectureError, ChoiceError, EquipoiseError
from equipoise.nn.fused_convs import FusedGATConv, FusedGATv2Conv
from equipoise.nn.fused_gcn import FusedGCNConv, ResidualGCNConv
from equipoise.nn.lipschitz_gat import LipschitzGATConv
from equipoise.nn.omega_gat import OmegaGATConv
from equipoise.nn.stack import ACTIVATIONS, KINDS, SKIPS, Stack

WIDTHS = [9, 6, 6, 3]
CONFIGS = [
    {"kind": kind, "heads": heads, "concat": concat, "skip": skip, "bias": bias}
    for kind, heads, concat, skip, bias in itertools.product(KINDS, (1, 4), (True, False), SKIPS, (True, False))
    if kind != "transformer" and (kind != "gcn" or heads == 1)  # transformer: test_transformer_equals_pyg
]

STOCK_CONFIGS = [  # layers that PyG has; the others have tests of their own
    config
    for config in CONFIGS
    if config["kind"] in ("gatv2", "gat") or (config["kind"] == "gcn" and config["skip"] != "linear")
]


def config_id(config: dict[str, Any]) -> str:
    return "-".join(map(str, config.values()))


@pytest.fixture(scope="module")
def graph() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 9, generator=generator), torch.randint(12, (2, 40), generator=generator)


def stock_layer(conv: nn.Module, skip: str | None, bias: bool) -> nn.Module:
    """PyG's layer with the same parameters."""
    if isinstance(conv, GCNConv):
        return GCNConv(conv.in_channels, conv.out_channels, bias=bias)
    conv_class, extra = (GATv2Conv, {"share_weights": True}) if isinstance(conv, GATv2Conv) else (GATConv, {})
    return conv_class(
        conv.in_channels,
        conv.out_channels,
        heads=conv.heads,
        concat=conv.concat,
        bias=bias,
        residual=skip == "linear",
        **extra,
    )


@pytest.mark.parametrize("config", CONFIGS, ids=config_id)
def test_shapes(config: dict[str, Any], graph: tuple[Tensor, Tensor]) -> None:
    stack = Stack(widths=WIDTHS, **config)
    out = stack(*graph)
    assert out.shape == (12, 3)
    hidden = 6 * config["heads"] if config["concat"] else 6
    assert [conv.in_channels for conv in stack.convs] == [9, hidden, hidden]
    assert [conv.out_channels for conv in stack.convs] == [6, 6, 3]
    assert [getattr(conv, "heads", 1) for conv in stack.convs] == [config["heads"], config["heads"], 1]
    names = {name.split(".")[2] for name, _ in stack.named_parameters()}
    assert ("bias" in names) == config["bias"]
    assert ("res" in names) == (config["skip"] == "linear")
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in stack.parameters())


@pytest.mark.parametrize("config", STOCK_CONFIGS, ids=config_id)
def test_parameters_move_to_pyg_and_back(config: dict[str, Any], graph: tuple[Tensor, Tensor]) -> None:
    stack, (_, edge_index) = Stack(widths=WIDTHS, **config), graph
    for conv in stack.convs:
        if conv.bias is not None:
            nn.init.normal_(conv.bias)  # a bias of zero would hide a missing one
        x = torch.randn(12, conv.in_channels)
        stock = stock_layer(conv, config["skip"], config["bias"])
        stock.load_state_dict(conv.state_dict())
        expected = stock(x, edge_index)
        torch.testing.assert_close(conv(x, edge_index), expected)
        conv.reset_parameters()
        assert not torch.allclose(conv(x, edge_index), expected)
        conv.load_state_dict(stock.state_dict())
        torch.testing.assert_close(conv(x, edge_index), expected)


def test_is_what_one_would_write_by_hand(graph: tuple[Tensor, Tensor]) -> None:
    stack, (x, edge_index) = Stack("gatv2", [9, 6, 5, 3]), graph
    layers = [GATv2Conv(n, m, share_weights=True, bias=False) for n, m in ((9, 6), (6, 5), (5, 3))]
    for layer, conv in zip(layers, stack.convs, strict=True):
        layer.load_state_dict(conv.state_dict())
    h = layers[0](x, edge_index).relu()
    h = layers[1](h, edge_index).relu()
    torch.testing.assert_close(stack(x, edge_index), layers[2](h, edge_index))


@pytest.mark.parametrize(
    ("kind", "conv"),
    [
        ("gatv2", FusedGATv2Conv),
        ("gat", FusedGATConv),
        ("gcn", FusedGCNConv),
        ("omega-gat", OmegaGATConv),
        ("lipschitz-gat", LipschitzGATConv),
    ],
)
def test_layer_class_of_each_kind(kind: str, conv: type) -> None:
    assert {type(layer) for layer in Stack(kind, WIDTHS).convs} == {conv}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_between_layers_only(activation: str, graph: tuple[Tensor, Tensor]) -> None:
    functions = {
        "relu": F.relu,
        "leaky-relu": F.leaky_relu,
        "elu": F.elu,
        "gelu": F.gelu,
        "tanh": torch.tanh,
        "identity": lambda h: h,
    }
    stack, (x, edge_index) = Stack("gcn", [9, 6, 3], activation=activation), graph
    h = functions[activation](stack.convs[0](x, edge_index))
    assert torch.equal(stack(x, edge_index), stack.convs[1](h, edge_index))


@pytest.mark.parametrize("kind", KINDS)
def test_identity_skip_between_equal_hidden_widths(kind: str, graph: tuple[Tensor, Tensor]) -> None:
    stack, (x, edge_index) = Stack(kind, [9, 9, 9, 4, 9], skip="identity"), graph
    c = stack.convs
    h = c[0](x, edge_index).relu()  # no skip from the input, although the widths are equal
    h = h + c[1](h, edge_index).relu()
    h = c[2](h, edge_index).relu()
    torch.testing.assert_close(stack(x, edge_index), c[3](h, edge_index))


@pytest.mark.parametrize(("norm", "kind"), [("layer", "gatv2"), ("batch", "gcn")])
def test_norm_is_between_layer_and_activation(norm: str, kind: str, graph: tuple[Tensor, Tensor]) -> None:
    stack, (x, edge_index) = Stack(kind, WIDTHS, norm=norm, skip="identity"), graph
    for module in stack.norms:
        nn.init.normal_(module.weight)
    (c, n), h = (stack.convs, stack.norms), x
    h = n[0](c[0](h, edge_index)).relu()
    h = h + n[1](c[1](h, edge_index)).relu()
    torch.testing.assert_close(stack(x, edge_index), c[2](h, edge_index))
    stack.reset_parameters()
    assert all(bool((module.weight == 1).all()) for module in stack.norms)


def test_jumping_knowledge_concatenates_all_hidden_features(graph: tuple[Tensor, Tensor]) -> None:
    stack, (x, edge_index) = Stack("gatv2", [9, 6, 4, 3], heads=2, jk="cat"), graph
    first = stack.convs[0](x, edge_index).relu()
    second = stack.convs[1](first, edge_index).relu()
    expected = stack.convs[2](torch.cat([first, second], dim=1), edge_index)
    torch.testing.assert_close(stack(x, edge_index), expected)
    assert Stack("gcn", [9, 3], jk="cat")(x, edge_index).shape == (12, 3)


@pytest.mark.parametrize("skip", [None, "linear"])
def test_transformer_equals_pyg(skip: str | None, graph: tuple[Tensor, Tensor]) -> None:
    stack = Stack("transformer", WIDTHS, heads=2, bias=True, skip=skip)
    h = graph[0]
    for conv in stack.convs:
        stock = TransformerConv(conv.in_channels, conv.out_channels, conv.heads, root_weight=skip == "linear")
        stock.load_state_dict(conv.state_dict())
        h = stock(h, graph[1])
        h = h.relu() if conv is not stack.convs[-1] else h
    torch.testing.assert_close(stack(*graph), h)


def test_identity_skip_accounts_for_heads() -> None:
    assert Stack("gatv2", [9, 8, 4, 4, 3], heads=2, skip="identity").identity_skips == {2}
    assert Stack("gatv2", [9, 6, 6, 3]).identity_skips == frozenset()
    assert Stack("gatv2", [9, 6, 3], skip="identity").identity_skips == frozenset()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [None, "linear"])
@pytest.mark.parametrize("sparse", [Tensor.to_sparse_coo, Tensor.to_sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_features(kind: str, skip: str | None, sparse: Any, graph: tuple[Tensor, Tensor]) -> None:
    stack, (x, edge_index) = Stack(kind, WIDTHS, skip=skip, dropout=0.5).eval(), graph
    x = x * (x > 0.5)
    torch.testing.assert_close(stack(sparse(x), edge_index), stack(x, edge_index))
    assert torch.isfinite(stack.train()(sparse(x), edge_index)).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "transformer"])  # has no self-loops
def test_options_reach_the_layers(kind: str, graph: tuple[Tensor, Tensor]) -> None:
    x, _ = graph
    no_edges = torch.empty(2, 0, dtype=torch.long)
    assert bool(Stack(kind, WIDTHS)(x, no_edges).any())
    assert not bool(Stack(kind, WIDTHS, add_self_loops=False)(x, no_edges).any())
    if kind != "gcn":
        assert {conv.negative_slope for conv in Stack(kind, WIDTHS, negative_slope=0.3).convs} == {0.3}
        assert {conv.dropout for conv in Stack(kind, WIDTHS, dropout=0.6).convs} == {0.6}
        assert {conv.dropout for conv in Stack(kind, WIDTHS, dropout=0.6, attention_dropout=0.1).convs} == {0.1}


@pytest.mark.parametrize("kind", ["gatv2", "omega-gat"])
def test_separate_weights(kind: str) -> None:
    shared, separate = Stack(kind, WIDTHS).convs[0], Stack(kind, WIDTHS, share_weights=False).convs[0]
    assert shared.lin_l is shared.lin_r
    assert separate.lin_l is not separate.lin_r


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_in_training_only(kind: str, graph: tuple[Tensor, Tensor]) -> None:
    stack = Stack(kind, WIDTHS, dropout=0.5)
    plain = Stack(kind, WIDTHS)
    plain.load_state_dict(stack.state_dict())
    assert not torch.equal(stack(*graph), stack(*graph))
    assert torch.equal(stack.eval()(*graph), plain(*graph))


def test_feature_dropout_and_attention_dropout_are_independent(graph: tuple[Tensor, Tensor]) -> None:
    features = Stack("gat", WIDTHS, dropout=0.5, attention_dropout=0.0)
    attention = Stack("gat", WIDTHS, attention_dropout=0.5)
    for stack, layer_drops in ((features, False), (attention, True)):
        assert not torch.equal(stack(*graph), stack(*graph))
        first = stack.convs[0]
        assert torch.equal(first(*graph), first(*graph)) != layer_drops
    single = Stack("gat", [9, 3], dropout=0.5, attention_dropout=0.0)
    assert torch.equal(single(*graph), single.eval()(*graph))  # dropout does not apply to the input


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gcn"])
def test_heads_of_the_last_layer_are_averaged(kind: str, graph: tuple[Tensor, Tensor]) -> None:
    stack = Stack(kind, WIDTHS, heads=2, out_heads=5)
    assert [conv.heads for conv in stack.convs] == [2, 2, 5]
    assert stack(*graph).shape == (12, 3)
    averaged, stack.convs[2].concat = stack(*graph), True
    assert torch.allclose(averaged, stack(*graph).view(12, 5, 3).mean(dim=1), atol=1e-6)


def test_input_dropout_applies_to_the_first_layer(graph: tuple[Tensor, Tensor]) -> None:
    stack, inputs = Stack("gcn", WIDTHS, input_dropout=0.5), []
    for conv in stack.convs:
        conv.register_forward_pre_hook(lambda conv, given: inputs.append(given[0]))
    stack(*graph)
    zeros = inputs[0] == 0
    assert 0.2 < zeros.double().mean() < 0.8
    assert torch.equal(inputs[0][~zeros], 2 * graph[0][~zeros])
    assert torch.equal(inputs[1], stack.activation(stack.convs[0](inputs[0], graph[1])))
    stack.eval()(*graph)
    assert torch.equal(inputs[-3], graph[0])


def test_identity_skip_is_not_dropped(graph: tuple[Tensor, Tensor]) -> None:
    stack, inputs = Stack("gcn", WIDTHS, dropout=0.5, skip="identity"), []
    nn.init.zeros_(stack.convs[1].lin.weight)
    stack.convs[2].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    stack(*graph)
    h = stack.convs[0](*graph).relu()
    nonzero = inputs[0] != 0
    assert 0.3 < float(nonzero.sum() / (h != 0).sum()) < 0.7
    torch.testing.assert_close(inputs[0][nonzero], 2 * h[nonzero])


@pytest.mark.parametrize("config", CONFIGS, ids=config_id)
def test_reset_parameters(config: dict[str, Any]) -> None:
    stack = Stack(widths=WIDTHS, **config)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.fill_(7.0)
    torch.manual_seed(3)
    stack.reset_parameters()
    first = {name: value.clone() for name, value in stack.state_dict().items()}
    assert all(not bool((value == 7.0).any()) for value in first.values())
    torch.manual_seed(3)
    stack.reset_parameters()
    assert all(torch.equal(value, first[name]) for name, value in stack.state_dict().items())
    torch.manual_seed(4)
    stack.reset_parameters()
    weights = [name for name in first if name.endswith("weight")]
    assert all(not torch.equal(stack.state_dict()[name], first[name]) for name in weights)


def test_linear_skip_of_gcn() -> None:
    assert {type(conv) for conv in Stack("gcn", WIDTHS, skip="linear").convs} == {ResidualGCNConv}


def test_numpy_widths(graph: tuple[Tensor, Tensor]) -> None:
    stack = Stack("gatv2", np.array([9, 4, 3]))
    assert stack.widths == (9, 4, 3)
    assert stack(*graph).shape == (12, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_repr(kind: str) -> None:
    text = repr(Stack(kind, [9, 6, 6, 6, 3], dropout=0.5, skip="identity", activation="elu"))
    assert f"{kind!r}, [9, 6, 6, 6, 3], heads=1, concat=True, dropout=0.5, skip='identity'" in text
    assert "2 x " in text  # torch groups equal layers in one line
    assert "(activation): ELU(alpha=1.0)" in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "gatv"}, "unknown kind 'gatv'(.|\n)*did you mean 'gat(v2)?'(.|\n)*lipschitz-gat"),
        ({"activation": "relo"}, "unknown activation 'relo'(.|\n)*did you mean 'relu'(.|\n)*tanh"),
        ({"skip": "identiti"}, "unknown skip 'identiti'(.|\n)*did you mean 'identity'(.|\n)*None, linear"),
    ],
)
def test_unknown_names(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ChoiceError, match=message):
        Stack(**{"kind": "gatv2", "widths": WIDTHS, **given})


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"widths": [9]}, r"at least two widths, got 1(.|\n)*widths=\[9\](.|\n)*\[1433, 64, 7\]"),
        ({"widths": []}, r"at least two widths, got 0"),
        ({"widths": [9, 0, 3]}, r"positive integers(.|\n)*widths\[1\]=0"),
        ({"widths": [-1, 4, 3]}, r"positive integers(.|\n)*widths\[0\]=-1"),
        ({"widths": [9, 10**30, 3]}, r"positive integers below 2³¹(.|\n)*widths\[1\]=10{30}"),
        ({"widths": [9, 6.0, 3]}, r"positive integers(.|\n)*widths\[1\]=6.0"),
        ({"heads": 0}, r"positive integers(.|\n)*heads=0"),
        ({"out_heads": 0}, r"positive integers(.|\n)*out_heads=0"),
        ({"input_dropout": 1.0}, r"probability(.|\n)*where:  input_dropout=1.0"),
        ({"kind": "gcn", "out_heads": 2}, r"gcn has no attention(.|\n)*heads=2"),
        ({"dropout": 1.0}, r"probability(.|\n)*where:  dropout=1.0"),
        ({"dropout": float("nan")}, r"probability(.|\n)*where:  dropout=nan"),
        ({"attention_dropout": -0.1}, r"probability(.|\n)*attention_dropout=-0.1"),
        ({"kind": "gcn", "heads": 4}, r"gcn has no attention(.|\n)*heads=4(.|\n)*gatv2"),
        ({"kind": "gcn", "attention_dropout": 0.5}, r"gcn has no attention(.|\n)*attention_dropout=0.5"),
        ({"kind": "gcn", "share_weights": False}, r"gcn has one weight matrix(.|\n)*share_weights=False(.|\n)*omega"),
        ({"kind": "gat", "share_weights": False}, r"gat has one weight matrix(.|\n)*share_weights=False"),
        ({"kind": "lipschitz-gat", "share_weights": False}, r"lipschitz-gat has one weight matrix"),
    ],
)
def test_invalid_options(given: dict[str, Any], where: str) -> None:
    with pytest.raises(ArchitectureError, match=where) as caught:
        Stack(**{"kind": "gatv2", "widths": WIDTHS, **given})
    assert isinstance(caught.value, EquipoiseError)
    assert caught.value.remedy


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}, {"norm": "layer", "skip": "identity"}, {"jk": "cat"}])
def test_recomputed_activations_give_the_same_numbers(options):
    x, edge_index = torch.randn(12, 5, dtype=torch.float64), torch.randint(12, (2, 40))
    gradients, saved = [], []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = Stack("gatv2", [5, *[8] * 8, 3], recompute=recompute, **options).double()
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            out = model(x, edge_index)
        out.pow(2).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        saved.append(sum(sizes))
    torch.testing.assert_close(*gradients)
    if "dropout" in options or "norm" in options:  # otherwise one function, which saves none of its activations here
        assert saved[1] < saved[0] / 2


def test_numpy_integers_are_numbers_of_heads() -> None:
    model = Stack("gatv2", np.array([5, 8, 3]), heads=np.int64(2), out_heads=np.int64(1))
    assert model(torch.rand(4, 5), torch.tensor([[0, 1], [1, 2]])).shape == (4, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": None}, "widths is a NoneType"),
        ({"dropout": None}, "dropout=None"),
        ({"dropout": "0.5"}, "dropout='0.5'"),
    ],
)
def test_options_of_another_type_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        Stack("gatv2", **{"widths": [5, 8, 3], **options})
