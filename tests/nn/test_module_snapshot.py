"""Snapshots of modules, and what a fused stack notices of changes to its layers."""

import pytest
import torch
from torch import nn
from torch_geometric.nn.aggr import MaxAggregation

from equipoise.nn.fused_stack import can_fuse
from equipoise.nn.module_snapshot import ModuleSnapshot
from equipoise.nn.stack import Stack

GENERATOR = torch.Generator().manual_seed(0)
X, EDGES = torch.randn(10, 8, generator=GENERATOR), torch.randint(0, 10, (2, 30), generator=GENERATOR)
HIDDEN = 2  # a layer other than the first


@pytest.fixture
def model():
    model = Stack("gatv2", [8, 16, 16, 16, 3])
    model(X, EDGES)
    assert fuses(model)
    return model


def fuses(model):
    return can_fuse(list(model.convs), model.activation, X, EDGES)


@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("step", ["propagate", "message", "aggregate"])
def test_message_passing_hooks_of_every_layer_of_a_stack_are_called(model, layer, step):
    calls = []
    handle = getattr(model.convs[layer], f"register_{step}_forward_hook")(lambda *_: calls.append(1))
    model(X, EDGES)
    assert calls
    handle.remove()
    assert fuses(model)


@pytest.mark.parametrize(
    ("name", "value"),
    [("flow", "target_to_source"), ("aggr_module", MaxAggregation()), ("negative_slope", 0.4), ("concat", False)],
)
def test_a_stack_follows_an_option_of_a_hidden_layer_that_changes(model, name, value):
    before = model(X, EDGES)
    setattr(model.convs[HIDDEN], name, value)
    reference = Stack("gatv2", [8, 16, 16, 16, 3])
    reference.load_state_dict(model.state_dict())
    setattr(reference.convs[HIDDEN], name, value)
    h = X
    for conv in reference.convs[:-1]:
        h = conv(h, EDGES).relu()
    expected = reference.convs[-1](h, EDGES)
    torch.testing.assert_close(model(X, EDGES), expected)
    assert name == "concat" or not torch.equal(before, expected)  # one head: concatenated or averaged alike


def test_submodules_with_hooks_or_replaced_ones_are_noticed(model):
    handle = model.convs[HIDDEN].lin_l.register_forward_hook(lambda *_: None)
    assert not fuses(model)
    handle.remove()
    assert fuses(model)
    model.convs[HIDDEN].lin_l = nn.Linear(16, 16, bias=False)
    assert not fuses(model)


def test_dropout_counts_in_training_mode_only(model):
    model.convs[HIDDEN].dropout = 0.5
    assert not fuses(model)
    assert fuses(model.eval())


def test_a_snapshot_is_current_until_something_changes():
    modules = [nn.Linear(2, 3), nn.ReLU()]
    snapshot = ModuleSnapshot(modules, ["training"])
    assert snapshot.is_current(modules)
    assert not snapshot.is_current(modules[:1])
    assert not snapshot.is_current([modules[0], nn.ReLU()])
    modules[0].weight.data.add_(1)  # values may change
    assert snapshot.is_current(modules)
    modules[0].weight = nn.Parameter(torch.ones(3, 2))
    assert not snapshot.is_current(modules)


@pytest.mark.parametrize(
    "change",
    [nn.Module.eval, lambda module: setattr(module, "inplace", True), lambda module: setattr(module, "forward", abs)],
)
def test_attributes_of_modules_are_compared(change):
    module = nn.ReLU()
    snapshot = ModuleSnapshot([module], ["training", "inplace"])
    change(module)
    assert not snapshot.is_current([module])
