import pytest
from torch import nn
from torch_geometric.nn import GAT, GCNConv, TransformerConv

from equipoise.errors import ModelError
from equipoise.nn.stack import Stack
from equipoise.train.watched import watched_layers
from tests.networks import Chain


def test_layers_of_a_stack_come_with_their_parts():
    model = Stack("gatv2", [6, 4, 4, 3])
    layers = watched_layers(model)
    assert [layer.name for layer in layers] == ["convs.0", "convs.1", "convs.2"]
    assert layers[1].features == (model.convs[1].lin_l.weight,)
    assert layers[1].attention == (model.convs[1].att,)


def test_order_is_that_in_which_they_run():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = GCNConv(4, 3), GCNConv(6, 4)

        def forward(self, x, edge_index):
            return self.last(self.first(x, edge_index).relu(), edge_index)

    assert [layer.name for layer in watched_layers(Backwards())] == ["first", "last"]


def test_norms_are_no_layers():
    model = GAT(6, 4, num_layers=3, out_channels=3, norm="batch_norm")
    assert [layer.name for layer in watched_layers(model)] == ["convs.0", "convs.1", "convs.2"]


def test_a_graph_layer_that_nobody_described_counts_as_one():
    model = Chain(TransformerConv(6, 4), TransformerConv(4, 3))
    layers = watched_layers(model)
    assert [layer.name for layer in layers] == ["conv1", "conv2"]
    assert set(layers[0].features) == set(model.conv1.parameters())


def test_a_model_without_any_known_part_is_watched_module_by_module():
    model = nn.Sequential(nn.LayerNorm(4), nn.ReLU(), nn.PReLU())
    assert [layer.name for layer in watched_layers(model)] == ["0", "2"]


def test_mistakes_are_named():
    with pytest.raises(ModelError, match=r"expected a torch\.nn\.Module"):
        watched_layers("model")
    with pytest.raises(ModelError, match="no trainable parameters"):
        watched_layers(nn.ReLU())
