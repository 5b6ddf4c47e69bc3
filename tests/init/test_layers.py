import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from equipoise.errors import InitializationError, ModelError
from equipoise.init.layers import ParameterRoles, layers_of, roles_of
from equipoise.init.schemes import initialize_
from equipoise.nn.stack import Stack
from tests.init.helpers import HandWritten, assert_raises_and_unchanged, max_relative_imbalance, seeded
from tests.networks import CLASSES, FEATURES


def test_layers_are_balanced_in_execution_order():
    model = initialize_(HandWritten(), "bal-x", generator=seeded())
    torch.testing.assert_close(model.encode.weight.square().sum(1), torch.full((8,), 2.0))


def test_lazy_parameters():
    model = pyg.GCN(-1, 8, num_layers=2, out_channels=CLASSES)
    with pytest.raises(ModelError, match=r"lazy(.|\n)*convs.0"):
        initialize_(model)


def test_unknown_layer_error_explains_registration_and_inputs():
    layers = [(pyg.NNConv(4, 4, nn.Linear(2, 16)), "x, edge_index, edge_attr -> x"), nn.ReLU(), nn.Linear(4, 2)]
    model = pyg.Sequential("x, edge_index, edge_attr", layers)
    error = assert_raises_and_unchanged(model, InitializationError, "parameter roles of NNConv are unknown")
    assert "@equipoise.init.layers.roles_of.register(NNConv)" in error.remedy
    assert "inputs=(x, edge_index)" in error.remedy
    assert "GATv2Conv" in error.remedy


def test_registered_layer():
    class MyConv(pyg.MessagePassing):
        def __init__(self, m, n):
            super().__init__(aggr="mean")
            self.w = nn.Parameter(torch.randn(n, m))

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x @ self.w.T)

    class MySubclass(MyConv):
        pass

    def network(kind):
        return pyg.Sequential(
            "x, edge_index",
            [(kind(FEATURES, 8), "x, edge_index -> x"), nn.ReLU(), (kind(8, CLASSES), "x, edge_index -> x")],
        )

    assert roles_of(MyConv(2, 2)) is None
    roles_of.register(MyConv)(lambda conv: ParameterRoles(features=(conv.w,)))
    for kind in (MyConv, MySubclass):
        assert max_relative_imbalance(initialize_(network(kind), "bal-o")) <= 1e-6


class Branches(nn.Module):
    """Two parallel branches, registered before the layer that reads their sum."""

    def __init__(self, width):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(FEATURES, width), nn.Linear(FEATURES, width), nn.Linear(width, CLASSES)

    def forward(self, x, _):
        return self.out(self.a(x).relu() + self.b(x).relu())


@pytest.mark.parametrize(
    ("width", "message"), [(8, "b reads 6 features, a writes 8"), (FEATURES, "b does not read the output of a")]
)
def test_parallel_branches_are_not_a_chain(width, message):
    with pytest.raises(InitializationError, match=message):
        layers_of(Branches(width))


def test_residual_connections_and_jumping_knowledge_are_chains():
    for model in (Stack("gcn", [FEATURES, 8, 8, 8, CLASSES], skip="identity"), pyg.GCN(FEATURES, 8, 3, 2, jk="cat")):
        assert [layer.name for layer in layers_of(model)][:3] == ["convs.0", "convs.1", "convs.2"]


def test_weights_of_unsupported_modules():
    model = nn.Sequential(nn.Linear(4, 4), nn.Bilinear(4, 4, 4))  # does not run on one argument
    error = assert_raises_and_unchanged(model, InitializationError, "weights belong to no supported layer")
    assert "laws=discover" in error.remedy
    with pytest.raises(InitializationError, match="no layer that can be initialised"):
        initialize_(nn.ReLU())
    with pytest.raises(ModelError):
        initialize_("model")
