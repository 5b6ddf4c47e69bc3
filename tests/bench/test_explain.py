import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, SAGEConv, TAGConv, TransformerConv

from equipoise.bench.explain import layer_paths
from equipoise.errors import ForwardError, ModelError
from equipoise.nn.fused_convs import fuse_
from equipoise.nn.stack import Stack
from tests.networks import edge_features, graph


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = fuse_(GATv2Conv(6, 6))
        self.edges = fuse_(GATv2Conv(6, 6, edge_dim=4))
        self.with_attention = fuse_(GATConv(6, 6))
        self.reverse = fuse_(GATConv(6, 6, flow="target_to_source"))
        self.stock = GCNConv(6, 6)
        self.sage = fuse_(SAGEConv(6, 6))
        self.transformer = fuse_(TransformerConv(6, 6, edge_dim=4))
        self.foreign = TAGConv(6, 6)
        self.unused = fuse_(GCNConv(6, 6))
        self.omega = Stack("omega-gat", [6, 3])

    def forward(self, x, edge_index, edge_attr):
        x = self.edges(self.plain(x, edge_index), edge_index, edge_attr=edge_attr)
        x = self.sage(self.transformer(x, edge_index, edge_attr), edge_index)
        x, _ = self.with_attention(x, edge_index, return_attention_weights=True)
        x = self.foreign(self.stock(self.plain(self.reverse(x, edge_index), edge_index), edge_index), edge_index)
        return self.omega(x, edge_index)


def test_path_and_reason_of_each_layer():
    paths = {path.name: path for path in layer_paths(Mixed(), *graph(), edge_features())}
    assert {name: path.path for name, path in paths.items()} == {
        "plain": "fused",
        "edges": "fused",
        "with_attention": "fused",
        "reverse": "PyG",
        "stock": "PyG",
        "sage": "fused",
        "transformer": "PyG",
        "foreign": "PyG",
        "unused": "none",
        "omega.convs.0": "PyG",
    }
    assert "flow" in paths["reverse"].reason
    assert paths["stock"].reason == "stock layer: call fuse_ first"
    assert paths["foreign"].reason == "there is no fused TAGConv"
    assert paths["transformer"].reason == "edge features of TransformerConv"
    assert "subclass of GATv2Conv" in paths["omega.convs.0"].reason
    assert paths["unused"].reason == "not called on these inputs"


def test_layer_with_two_paths_has_two_entries():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = fuse_(GATv2Conv(6, 6))

        def forward(self, x, edge_index):
            return self.conv(self.conv(x, edge_index), edge_index.short())

    assert [path.path for path in layer_paths(Twice(), *graph())] == ["fused", "PyG"]


def test_model_that_is_a_layer():
    (path,) = layer_paths(fuse_(GCNConv(6, 3)), *graph())
    assert (path.name, path.path) == ("(the model)", "fused")


def test_reference_engine_is_a_reason(monkeypatch):
    monkeypatch.setenv("EQUIPOISE_ENGINE", "reference")
    reasons = {path.reason for path in layer_paths(Stack("gatv2", [6, 4, 3]), *graph())}
    assert reasons == {"EQUIPOISE_ENGINE=reference"}


def test_hooks_are_removed():
    model = Stack("gatv2", [6, 4, 3])
    layer_paths(model, *graph())
    assert not any(conv._forward_pre_hooks for conv in model.convs)


def test_error_names_the_model():
    with pytest.raises(ForwardError, match=r"does not run on these inputs: TypeError(.|\n)*where:  Mixed"):
        layer_paths(Mixed(), *graph())
    with pytest.raises(ModelError, match=r"expected a torch.nn.Module"):
        layer_paths(torch.relu, *graph())
