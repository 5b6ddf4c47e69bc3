"""Initialisation along laws: networks that are not a chain of known layers."""

import copy
import logging
import warnings

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Data

from equipoise.errors import BalanceError, ChoiceError, ForwardError, InitializationError
from equipoise.init.network import balance_along_laws, draw_network, network_roles
from equipoise.init.schemes import SCHEMES, initialize_
from equipoise.laws.discover import discover
from equipoise.laws.rebalance import rebalance_
from tests.init.helpers import assert_raises_and_unchanged, max_relative_imbalance, seeded, stack
from tests.init.test_layers import Branches
from tests.networks import CLASSES, FEATURES, Chain, graph

EDGES = [("a", "to", "b"), ("b", "to", "a"), ("a", "in", "a")]


def hetero_inputs(edge_types=EDGES):
    x = {"a": graph(0)[0], "b": graph(1)[0]}
    return x, {edge_type: graph(seed)[1] for seed, edge_type in enumerate(edge_types)}


def concatenate(output):
    return torch.cat(list(output.values()))


def pna():
    degrees = torch.bincount(torch.bincount(graph()[1][1]))
    return pyg.PNA(FEATURES, 8, 2, CLASSES, aggregators=["mean", "max"], scalers=["identity", "linear"], deg=degrees)


class GPS(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.conv = pyg.GPSConv(8, pyg.GCNConv(8, 8), heads=2)

    def forward(self, x, edge_index):
        return self.decode(self.conv(self.encode(x), edge_index))


def transformer(heads=2, **options):
    width = 4 * heads if options.get("concat", True) else 4
    hidden = pyg.TransformerConv(width, 4, heads=heads, **options)
    return Chain(pyg.TransformerConv(FEATURES, 4, heads=heads, **options), hidden, pyg.TransformerConv(width, CLASSES))


NETWORKS = {
    "GIN": lambda: pyg.GIN(FEATURES, 8, 3, CLASSES),
    "PNA": pna,
    "SAGE with projection": lambda: Chain(
        pyg.SAGEConv(FEATURES, 8, project=True), pyg.SAGEConv(8, CLASSES, project=True)
    ),
    "TransformerConv": transformer,
    "TransformerConv, averaged heads": lambda: transformer(concat=False),
    "GPS": lambda: GPS().eval(),
    "branches": lambda: Branches(8),
    "branches of equal width": lambda: Branches(FEATURES),
    "hetero": lambda: pyg.to_hetero(pyg.GraphSAGE(FEATURES, 8, 2, CLASSES), (["a", "b"], EDGES)),
}


def laws_of(name, model):
    return discover(model, *hetero_inputs(), output=concatenate) if name == "hetero" else discover(model, *graph())


def output_of(name, model):
    return concatenate(model(*hetero_inputs())) if name == "hetero" else model(*graph())


def worst(laws):
    return max(float(law.relative_imbalance().abs().max()) for law in laws if law.outgoing)


@pytest.mark.parametrize("name", NETWORKS)
def test_balanced_schemes_balance_every_network(name):
    model = NETWORKS[name]()
    laws = laws_of(name, model)
    for scheme, direction in [("bal-o", "forward"), ("bal-x", "reverse"), ("rebalanced", "forward")]:
        for parameter in model.parameters():  # out of balance
            nn.init.normal_(parameter)
        assert worst(laws) > 0.1
        initialize_(model, scheme, direction=direction, generator=seeded(), laws=laws)
        assert worst(laws) <= 1e-6
        assert bool(torch.isfinite(output_of(name, model)).all())


def test_laws_are_found_without_inputs_where_the_model_takes_a_graph():
    for name in ("GIN", "branches of equal width", "TransformerConv"):
        model = initialize_(NETWORKS[name](), "bal-o", generator=seeded())
        assert worst(laws_of(name, model)) <= 1e-6


@pytest.mark.parametrize("name", NETWORKS)
def test_rebalanced_keeps_the_function(name):
    model = NETWORKS[name]()
    laws = laws_of(name, model)
    before = output_of(name, model)
    initialize_(model, "rebalanced", laws=laws)
    torch.testing.assert_close(output_of(name, model), before, rtol=1e-4, atol=1e-4)
    assert worst(laws) <= 1e-6


def test_rebalanced_keeps_the_function_of_a_chain_to_rounding():
    model = stack("gatv2", heads=2, bias=True).double()
    x, edge_index = graph(dtype=torch.float64)
    before = model(x, edge_index)
    assert initialize_(model, "rebalanced", inputs=(x, edge_index)) is model
    torch.testing.assert_close(model(x, edge_index), before, rtol=1e-11, atol=1e-12)
    assert worst(discover(model, x, edge_index)) <= 1e-11


@pytest.mark.parametrize(("scheme", "direction"), [("bal-o", "forward"), ("bal-x", "reverse")])
@pytest.mark.parametrize(
    "build",
    [
        lambda: stack("gatv2"),
        lambda: stack("gatv2", heads=2, concat=False, bias=True),
        lambda: stack("gcn", skip="linear"),
        lambda: pyg.GCN(FEATURES, 8, 3, CLASSES, jk="cat"),
    ],
    ids=["gatv2", "averaged heads", "linear skip", "jumping knowledge"],
)
def test_laws_give_the_same_weights_as_the_structure_of_a_chain(build, scheme, direction):
    chain = build().double()
    along_laws = copy.deepcopy(chain)
    initialize_(chain, scheme, direction=direction, generator=seeded())
    laws = discover(along_laws, *graph(dtype=torch.float64))
    roles, settings = network_roles(along_laws, laws), SCHEMES[scheme]
    values = draw_network(roles, laws, settings, seeded())
    balance_along_laws(laws, roles.features, values, settings.beta, direction)
    for name, parameter in chain.named_parameters():
        torch.testing.assert_close(values[along_laws.get_parameter(name)], parameter.detach(), msg=name)


def test_parallel_branches_look_linear():
    model = initialize_(Branches(8), "bal-o", generator=seeded()).double()
    x, y = torch.randn(2, 10, FEATURES, dtype=torch.float64)
    torch.testing.assert_close(model(2 * x - 3 * y, None), 2 * model(x, None) - 3 * model(y, None))
    torch.testing.assert_close(
        model.a.weight.square().sum(1) + model.b.weight.square().sum(1), model.out.weight.square().sum(0)
    )


def test_query_and_key_are_small_but_not_zero():
    model = initialize_(transformer(), "bal-o", generator=seeded())
    model(*graph()).square().sum().backward()
    for conv in model.children():
        for lin in (conv.lin_query, conv.lin_key):
            assert 0 < float(lin.weight.detach().norm()) < float(conv.lin_value.weight.detach().norm())
            assert bool(lin.weight.grad.any())
        assert not any(bool(p.any()) for name, p in conv.named_parameters() if "skip" in name or "bias" in name)
    assert worst(discover(model, *graph())) <= 1e-6


def test_balancing_query_and_key_keeps_the_value_path():
    """The whole norm stays on the value path: the three readers of a neuron do not share it."""
    model = transformer(heads=1).double()
    laws = discover(model, *graph(dtype=torch.float64))
    roles = network_roles(model, laws)
    values = draw_network(roles, laws, SCHEMES["bal-o"], seeded())
    balance_along_laws(laws, roles.features, values, 2.0, "forward")
    hidden = values[model.conv2.lin_value.weight]
    torch.testing.assert_close(hidden.square().sum(0), torch.full((4,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("norm", ["LayerNorm", "BatchNorm"])
def test_norms_of_a_chain_are_balanced_without_changing_its_function(norm):
    model = pyg.GCN(FEATURES, 8, 3, CLASSES, norm=norm)
    initialize_(model, "bal-o", generator=seeded())
    assert max_relative_imbalance(model) <= 1e-6
    plain = pyg.GCN(FEATURES, 8, 3, CLASSES, norm=norm)
    chain = pyg.GCN(FEATURES, 8, 3, CLASSES)
    initialize_(chain, "bal-o", generator=seeded())
    plain.load_state_dict(chain.state_dict(), strict=False)
    torch.testing.assert_close(model(*graph()), plain(*graph()), rtol=1e-3, atol=1e-4)


class Bipartite(nn.Module):
    """Messages from fixed source nodes: only the root weights of the second layer read the hidden features."""

    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.SAGEConv(FEATURES, 8), pyg.SAGEConv((FEATURES, 8), CLASSES)

    def forward(self, x, edge_index):
        return self.second((x, self.first(x, edge_index).relu()), edge_index)


def test_skip_that_alone_reads_a_neuron_is_drawn():
    model = initialize_(Bipartite(), "bal-o", inputs=graph(), generator=seeded())
    assert bool(model.second.lin_r.weight.any())
    assert not bool(model.first.lin_r.weight.any())
    assert max_relative_imbalance(model) <= 1e-6


def test_parameters_of_unknown_modules_keep_their_values_up_to_a_rescaling():
    model = GPS().eval()
    before = copy.deepcopy(model.conv.attn.in_proj_weight)
    initialize_(model, "bal-o", generator=seeded())
    assert torch.equal(model.conv.attn.in_proj_weight.sign(), before.sign())


def test_imbalance_is_logged(caplog):
    with caplog.at_level(logging.INFO, logger="equipoise"):
        initialize_(pyg.GIN(FEATURES, 8, 2, CLASSES), "bal-o", generator=seeded())
    assert "bal-o: balanced 19 neurons in 3 laws, imbalance at most" in caplog.text


def test_warning_without_relu():
    for activation in ("elu", "tanh", "identity"):
        with pytest.warns(UserWarning, match="no ReLU"):
            initialize_(stack("gatv2", activation=activation), "bal-o")
    with pytest.warns(UserWarning, match="no ReLU"):
        initialize_(transformer_with(torch.tanh), "llortho")


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
def test_the_relu_of_a_recurrent_layer_is_seen(nonlinearity):
    model = nn.RNN(FEATURES, 8, nonlinearity=nonlinearity, batch_first=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        initialize_(model, "bal-o", inputs=(torch.randn(5, 3, FEATURES),))
    assert any("no ReLU" in str(warning.message) for warning in caught) == (nonlinearity == "tanh")


def test_no_warning_with_relu_or_without_mirrored_weights():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        initialize_(stack("gatv2", activation="leaky-relu"), "bal-o")
        initialize_(transformer_with(torch.relu), "bal-o")
        initialize_(stack("gatv2", activation="elu"), "bal-x")


def transformer_with(activation):
    return Chain(pyg.TransformerConv(FEATURES, 8), pyg.TransformerConv(8, CLASSES), activation=activation)


def test_warning_without_laws():
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(UserWarning, match="has no law"):
        initialize_(model, "rebalanced", inputs=(graph()[0],))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_errors_leave_the_model_unchanged():
    model = transformer()
    for lin in (model.conv1.lin_value, model.conv1.lin_skip):
        nn.init.zeros_(lin.weight)
        nn.init.zeros_(lin.bias)
    assert_raises_and_unchanged(model, BalanceError, "zero norm on one side", "rebalanced")
    assert_raises_and_unchanged(transformer(), ChoiceError, "unknown direction", direction="up")
    assert_raises_and_unchanged(transformer(), BalanceError, "beta must be", beta=-1.0)
    assert_raises_and_unchanged(transformer(), InitializationError, "needs inputs", calibrate=True)
    hetero = NETWORKS["hetero"]()
    assert_raises_and_unchanged(hetero, InitializationError, "chain|does not run", "rebalanced")


def test_rebalance_after_a_draw_is_idempotent():
    model = initialize_(pyg.GIN(FEATURES, 8, 2, CLASSES), "bal-x", generator=seeded())
    before = copy.deepcopy(model.state_dict())
    rebalance_(discover(model, *graph()))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=1e-5, atol=1e-6)


def test_inputs_are_enough_for_a_model_that_returns_a_dictionary():
    model = NETWORKS["hetero"]()
    initialize_(model, "bal-o", inputs=hetero_inputs(), generator=seeded())
    assert worst(laws_of("hetero", model)) <= 1e-6


def test_inputs_as_a_data_object_and_as_a_dictionary():
    x, edge_index = graph()
    forms = [(x, edge_index), Data(x=x, edge_index=edge_index), {"x": x, "edge_index": edge_index}]
    models = [initialize_(pyg.GIN(FEATURES, 8, 3, CLASSES), "bal-o", inputs=i, generator=seeded()) for i in forms]
    outputs = [model.eval()(x, edge_index) for model in models]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("scheme", ["bal-o", "xav"])
def test_inputs_on_which_the_model_does_not_run_are_an_error(scheme):
    for inputs in (graph()[0], (graph()[0],)):  # rows of a single tensor are no arguments
        assert_raises_and_unchanged(stack("gcn"), InitializationError, "does not run on", scheme, inputs=inputs)
    with pytest.raises(ForwardError, match="does not take these inputs"):
        initialize_(stack("gcn"), scheme, inputs={"x": graph()[0], "edges": graph()[1]})


def test_a_chain_runs_once():
    class Counted(Chain):
        calls = 0

        def forward(self, x, edge_index):
            Counted.calls += 1
            return super().forward(x, edge_index)

    model = Counted(pyg.GCNConv(FEATURES, 8), pyg.GCNConv(8, CLASSES))
    initialize_(model, "bal-o", generator=seeded())
    assert Counted.calls == 1
