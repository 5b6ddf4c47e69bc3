import pytest
import torch
from torch import nn

from equipoise.errors import LawError
from equipoise.laws.discover import discover
from equipoise.laws.telescope import telescope
from tests.networks import CLASSES, FEATURES, gatv2, graph, loss


def test_first_layer_minus_all_attention_is_the_last_layer():
    torch.manual_seed(0)
    model = gatv2([FEATURES, 8, 8, 8, CLASSES], share_weights=True, bias=False).double()
    x, edge_index = graph(dtype=torch.float64)
    identity = telescope(discover(model, x, edge_index))
    assert [slot.name for slot in identity.incoming] == ["conv1.lin_l.weight"]
    assert {slot.name for slot in identity.outgoing} == {
        "conv1.att",
        "conv2.att",
        "conv3.att",
        "conv4.lin_l.weight",
    }
    assert str(identity).startswith("Σ conv1.lin_l.weight[i,:] = Σ conv1.att[i]")
    loss(model(x, edge_index)).backward()

    def product(name: str) -> float:
        p = model.get_parameter(name)
        return float((p.detach() * p.grad).sum())

    left = product("conv1.lin_l.weight") - sum(product(f"conv{layer}.att") for layer in (1, 2, 3))
    assert left == pytest.approx(product("conv4.lin_l.weight"), abs=1e-15)
    assert abs(float(identity.residual())) < 1e-15
    assert abs(product("conv4.lin_l.weight")) > 1e-4
    norm = {name: float(p.detach().square().sum()) for name, p in model.named_parameters()}
    c = norm["conv1.lin_l.weight"] - sum(norm[f"conv{layer}.att"] for layer in (1, 2, 3)) - norm["conv4.lin_l.weight"]
    assert float(identity.imbalance()) == pytest.approx(c)


def test_a_broken_law_shows_in_the_sum():
    torch.manual_seed(0)
    model = gatv2([FEATURES, 8, 8, CLASSES], share_weights=True, bias=False).double()
    x, edge_index = graph(dtype=torch.float64)
    laws = discover(model, x, edge_index)
    loss(model(x, edge_index)).backward()
    model.conv1.att.grad += 1.0
    assert abs(float(telescope(laws).residual())) > 1e-3


def test_biases_stay_on_the_incoming_side():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    identity = telescope(discover(model, torch.randn(6, 3)))
    assert [slot.name for slot in identity.incoming] == ["0.weight", "0.bias", "2.bias"]
    assert [slot.name for slot in identity.outgoing] == ["4.weight"]


def test_refuses_laws_that_are_no_chain():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)
    )
    first, _, third = discover(model, torch.randn(6, 3))
    with pytest.raises(LawError, match="no chain"):
        telescope([first, third])
    with pytest.raises(LawError, match="no law"):
        telescope([])
