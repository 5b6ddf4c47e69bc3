import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT, GATConv

from equipoise.nn import stack as stack_module
from equipoise.nn.stack import Stack
from equipoise.train.passes import Capture
from equipoise.train.watched import watched_layers
from tests.networks import graph


def captured(model, *inputs):
    """What a capture sees of a forward pass, and what the pass gives."""
    capture = Capture(model, watched_layers(model))
    capture.on()
    model(*inputs)  # of two passes the last is kept
    output = model(*inputs)
    passes = dict(capture.passes)
    capture.off()
    return passes, output


def test_capture_keeps_the_last_pass_only_while_it_is_on():
    x, edge_index = graph()
    model = Stack("gcn", [6, 4, 3])
    capture = Capture(model, watched_layers(model))
    model(x, edge_index)
    assert capture.passes == {}
    capture.on()
    capture.on()
    model(x, edge_index)
    output = model(2 * x, edge_index)
    assert torch.equal(capture.passes[1].x, 2 * x)
    assert torch.equal(capture.passes[2].output, output)
    assert capture.passes[1].edge_index is edge_index
    assert capture.passes[1].plain
    capture.off()
    model(x, edge_index)
    assert capture.passes == {}
    assert all(not module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("heads", [1, 2])
def test_a_chain_stays_one_and_shows_what_its_layers_show_one_by_one(heads, monkeypatch):
    x, edge_index = graph()
    model = Stack("gatv2", [6, 8, 16, 3], heads=heads)
    together, output = captured(model, x, edge_index)
    assert type(output.grad_fn).__name__ == "SliceBackward0"
    assert output.grad_fn.next_functions[0][0].name() == "_ChainBackward"
    monkeypatch.setattr(stack_module, "can_chain", lambda *_: False)
    apart, again = captured(model, x, edge_index)
    torch.testing.assert_close(output, again)
    for number in (1, 2, 3):
        assert not together[number].output.requires_grad
        assert together[number].plain
        assert apart[number].plain
        torch.testing.assert_close(together[number].x, apart[number].x)
        torch.testing.assert_close(together[number].output, apart[number].output)


def test_other_hooks_still_take_a_chain_apart():
    x, edge_index = graph()
    model, seen = Stack("gatv2", [6, 8, 3]), []
    model.convs[0].register_forward_hook(lambda conv, inputs, output: seen.append(output))
    passes, _ = captured(model, x, edge_index)
    assert seen[-1].requires_grad
    assert (seen[-1] < 0).any(), "a hook sees what the layer wrote, before the activation"
    assert torch.equal(passes[1].output, seen[-1].relu())


@pytest.mark.parametrize("activation", ["relu", "elu", "tanh"])
def test_representations_come_after_the_activation(activation):
    x, edge_index = graph()
    model = GAT(6, 8, num_layers=3, out_channels=3, act=activation)
    passes, output = captured(model, x, edge_index)
    for number in (1, 2):
        assert torch.equal(passes[number].output, passes[number + 1].x)
    assert torch.equal(passes[3].output, output)


def test_an_activation_elsewhere_is_not_taken_for_a_layers():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.activation = GATConv(6, 4), nn.Tanh()

        def forward(self, x, edge_index):
            h = self.conv(self.activation(x), edge_index)
            return self.activation(2 * h)

    x, edge_index = graph()
    model = Twice()
    passes, _ = captured(model, x, edge_index)
    torch.testing.assert_close(passes[1].output, model.conv(x.tanh(), edge_index).detach())
