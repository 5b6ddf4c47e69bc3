import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT, GATConv, GCNConv, TAGConv

from equipoise.errors import ModelError
from equipoise.nn import stack as stack_module
from equipoise.nn.stack import Stack
from equipoise.training.capture import Capture, layers_to_record
from tests.networks import Chain, graph


def capture_forward(model, *inputs):
    """Return the captured calls of a forward pass, and its output."""
    capture = Capture(model, layers_to_record(model))
    capture.enable()
    model(*inputs)  # overwritten by the second pass
    output = model(*inputs)
    calls = dict(capture.calls)
    capture.disable()
    return calls, output


def test_keeps_the_last_call_only_while_enabled():
    x, edge_index = graph()
    model = Stack("gcn", [6, 4, 3])
    capture = Capture(model, layers_to_record(model))
    model(x, edge_index)
    assert capture.calls == {}
    capture.enable()
    capture.enable()
    model(x, edge_index)
    output = model(2 * x, edge_index)
    assert torch.equal(capture.calls[1].x, 2 * x)
    assert torch.equal(capture.calls[2].output, output)
    assert capture.calls[1].edge_index is edge_index
    assert not capture.calls[1].extra_inputs
    capture.disable()
    model(x, edge_index)
    assert capture.calls == {}
    assert all(not module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("heads", [1, 2])
def test_a_fused_stack_stays_fused_and_provides_the_calls_of_its_layers(heads, monkeypatch):
    x, edge_index = graph()
    model = Stack("gatv2", [6, 8, 16, 3], heads=heads)
    fused, output = capture_forward(model, x, edge_index)
    monkeypatch.setattr(stack_module, "can_fuse", lambda *_: False)
    layered, layered_output = capture_forward(model, x, edge_index)
    torch.testing.assert_close(output, layered_output)
    for number in (1, 2, 3):
        assert fused[number].attention is not None, "only a fused stack provides coefficients"
        assert layered[number].attention is None
        assert not fused[number].output.requires_grad
        assert not fused[number].extra_inputs
        assert not layered[number].extra_inputs
        torch.testing.assert_close(fused[number].x, layered[number].x)
        torch.testing.assert_close(fused[number].output, layered[number].output)


def test_other_hooks_disable_the_fused_stack():
    x, edge_index = graph()
    model, outputs = Stack("gatv2", [6, 8, 3]), []
    model.convs[0].register_forward_hook(lambda conv, inputs, output: outputs.append(output))
    calls, _ = capture_forward(model, x, edge_index)
    assert outputs[-1].requires_grad
    assert (outputs[-1] < 0).any(), "a hook gets the output before the activation"
    assert torch.equal(calls[1].output, outputs[-1].relu())


@pytest.mark.parametrize("activation", ["relu", "elu", "tanh"])
def test_outputs_are_captured_after_the_activation(activation):
    x, edge_index = graph()
    model = GAT(6, 8, num_layers=3, out_channels=3, act=activation)
    calls, output = capture_forward(model, x, edge_index)
    for number in (1, 2):
        assert torch.equal(calls[number].output, calls[number + 1].x)
    assert torch.equal(calls[3].output, output)


def test_activations_of_other_tensors_are_ignored():
    class SharedActivation(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.activation = GATConv(6, 4), nn.Tanh()

        def forward(self, x, edge_index):
            h = self.conv(self.activation(x), edge_index)
            return self.activation(2 * h)

    x, edge_index = graph()
    model = SharedActivation()
    calls, _ = capture_forward(model, x, edge_index)
    torch.testing.assert_close(calls[1].output, model.conv(x.tanh(), edge_index).detach())


def test_layers_of_a_stack_come_with_their_parameter_roles():
    model = Stack("gatv2", [6, 4, 4, 3])
    layers = layers_to_record(model)
    assert [layer.name for layer in layers] == ["convs.0", "convs.1", "convs.2"]
    assert layers[1].features == (model.convs[1].lin_l.weight,)
    assert layers[1].attention == (model.convs[1].att,)


def test_execution_order():
    class ReverseRegistration(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = GCNConv(4, 3), GCNConv(6, 4)

        def forward(self, x, edge_index):
            return self.last(self.first(x, edge_index).relu(), edge_index)

    assert [layer.name for layer in layers_to_record(ReverseRegistration())] == ["first", "last"]


def test_norms_are_not_layers():
    model = GAT(6, 4, num_layers=3, out_channels=3, norm="batch_norm")
    assert [layer.name for layer in layers_to_record(model)] == ["convs.0", "convs.1", "convs.2"]


def test_graph_layer_without_registered_roles():
    model = Chain(TAGConv(6, 4), TAGConv(4, 3))
    layers = layers_to_record(model)
    assert [layer.name for layer in layers] == ["conv1", "conv2"]
    assert set(layers[0].features) == set(model.conv1.parameters())


def test_model_without_known_layers():
    model = nn.Sequential(nn.LayerNorm(4), nn.ReLU(), nn.PReLU())
    assert [layer.name for layer in layers_to_record(model)] == ["0", "2"]


def test_invalid_models():
    with pytest.raises(ModelError, match=r"expected a torch\.nn\.Module"):
        layers_to_record("model")
    with pytest.raises(ModelError, match="no trainable parameters"):
        layers_to_record(nn.ReLU())
