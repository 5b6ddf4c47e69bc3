import copy

import pytest
import torch
from torch import nn

from equipoise.errors import ChoiceError, ExpiredLawError, GradientError, LawError
from equipoise.laws.discover import discover
from equipoise.laws.law import Law, imbalance, residual
from equipoise.laws.rebalance import rebalance_
from equipoise.laws.slot import Slot
from equipoise.laws.telescope import telescope
from tests.networks import CLASSES, FEATURES, gatv2, graph, loss


def mlp_with_law() -> tuple[nn.Module, Law]:
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
    rows, columns = Slot(model, "0.weight", (4, 3), 4, inner=3), Slot(model, "2.weight", (2, 4), 4)
    return model, Law((rows,), (columns,))


def test_string_representation():
    _, law = mlp_with_law()
    assert str(law) == "0.weight[i,:] = 2.weight[:,i]   (4 neurons)"


def test_imbalance_is_the_difference_of_squared_norms():
    model, law = mlp_with_law()
    expected = model[0].weight.square().sum(1) - model[2].weight.square().sum(0)
    torch.testing.assert_close(law.imbalance(), expected.detach())
    assert imbalance([law], per="layer")[0] == pytest.approx(float(expected.detach().sum()))
    assert float(law.relative_imbalance().abs().max()) <= 1.0


def test_relative_imbalance_of_a_dead_neuron_is_zero():
    model, law = mlp_with_law()
    model[0].weight.data[1] = 0.0
    model[2].weight.data[:, 1] = 0.0
    assert float(law.relative_imbalance()[1]) == 0.0
    model[2].weight.data[:, 1] = 1.0
    assert float(law.relative_imbalance()[1]) == -1.0


def test_residual_needs_gradients_and_vanishes_only_for_a_law():
    model, law = mlp_with_law()
    with pytest.raises(GradientError):
        residual([law])
    loss(model(torch.randn(8, 3, dtype=torch.float64))).backward()
    assert float(law.residual().abs().max()) < 1e-15
    assert float(law.incoming[0].gradient_product().abs().max()) > 1e-4
    incomplete = Law(law.incoming, ())
    assert float(incomplete.residual().abs().max()) > 1e-4
    assert abs(float(residual([law], per="layer")[0])) < 1e-15


def test_unknown_granularity_is_rejected():
    _, law = mlp_with_law()
    with pytest.raises(ChoiceError, match="did you mean 'layer'"):
        imbalance([law], per="layers")


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("lr", [0.01, 0.5])
def test_predicted_drift_is_exact_over_50_steps(lr, weight_decay):
    torch.manual_seed(0)
    model = gatv2([FEATURES, 8, 8, CLASSES], heads=2).double()
    x, edge_index = graph(dtype=torch.float64)
    laws = discover(model, x, edge_index)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=weight_decay)
    initial, predicted = imbalance(laws), [torch.zeros(law.neurons, dtype=torch.float64) for law in laws]
    for _ in range(50):
        optimizer.zero_grad()
        loss(model(x, edge_index)).backward()
        predicted = [total + law.predicted_drift(lr, weight_decay) for total, law in zip(predicted, laws, strict=True)]
        optimizer.step()
    for before, drift, after in zip(initial, predicted, imbalance(laws), strict=True):
        measured = after - before
        assert float(measured.abs().max()) > 1e-6, "no drift to compare with"
        error = float((measured - drift).abs().max() / measured.abs().max())
        assert error < 1e-10, f"relative error of the predicted drift: {error:.1e}"


def test_adam_keeps_the_residual_zero_but_does_not_conserve_c():
    torch.manual_seed(0)
    model = gatv2([FEATURES, 8, CLASSES]).double()
    x, edge_index = graph(dtype=torch.float64)
    (law,) = discover(model, x, edge_index)
    optimizer, initial = torch.optim.Adam(model.parameters(), lr=0.05), law.imbalance()
    for _ in range(10):
        optimizer.zero_grad()
        loss(model(x, edge_index)).backward()
        assert float(law.residual().abs().max()) < 1e-14
        optimizer.step()
    assert float((law.imbalance() - initial).abs().max()) > 1e-2


def test_rescale_preserves_the_function():
    model, law = mlp_with_law()
    x, before = torch.randn(8, 3, dtype=torch.float64), copy.deepcopy(model)
    law.rescale_(torch.tensor([2.0, 0.5, 3.0, 1.0], dtype=torch.float64))
    assert not torch.equal(model[0].weight, before[0].weight)
    torch.testing.assert_close(model(x), before(x))


@pytest.mark.parametrize("factors", [torch.ones(3), torch.tensor([1.0, -1.0, 1.0, 1.0]), torch.zeros(4)])
def test_rescale_rejects_invalid_factors(factors):
    model, law = mlp_with_law()
    before = model[0].weight.clone()
    with pytest.raises(LawError, match="positive factors"):
        law.rescale_(factors)
    assert torch.equal(model[0].weight, before)


def test_slots_must_agree_in_number_of_neurons():
    model, law = mlp_with_law()
    with pytest.raises(LawError, match="same number of neurons"):
        Law(law.incoming, (Slot(model, "0.weight", (4, 3), 3),))
    with pytest.raises(LawError, match="at least one incoming"):
        Law((), law.outgoing)


def test_bind_to_a_copy():
    model, law = mlp_with_law()
    other = copy.deepcopy(model)
    other[0].weight.data.mul_(2.0)
    torch.testing.assert_close(law.bind(other).norms()[0], 4.0 * law.norms()[0])


def test_law_refers_to_current_parameters_in_any_dtype():
    model, law = mlp_with_law()
    model.float()
    assert law.imbalance().dtype == torch.float32
    model[0].weight.data.zero_()
    assert bool((law.imbalance() <= 0).all())


@pytest.mark.parametrize("function", [imbalance, residual, rebalance_, telescope])
@pytest.mark.parametrize("argument", ["single law", 3, "text", [3]])
def test_rejects_arguments_other_than_lists_of_laws(function, argument):
    _, law = mlp_with_law()
    with pytest.raises(LawError, match=r"expected a list of laws, got (.|\n)*the result of discover"):
        function(law if argument == "single law" else argument)


def test_telescope_relates_first_layer_attention_and_last_layer():
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


def test_telescope_detects_a_violated_law():
    torch.manual_seed(0)
    model = gatv2([FEATURES, 8, 8, CLASSES], share_weights=True, bias=False).double()
    x, edge_index = graph(dtype=torch.float64)
    laws = discover(model, x, edge_index)
    loss(model(x, edge_index)).backward()
    model.conv1.att.grad += 1.0
    assert abs(float(telescope(laws).residual())) > 1e-3


def test_telescope_keeps_biases_on_the_incoming_side():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    identity = telescope(discover(model, torch.randn(6, 3)))
    assert [slot.name for slot in identity.incoming] == ["0.weight", "0.bias", "2.bias"]
    assert [slot.name for slot in identity.outgoing] == ["4.weight"]


def test_telescope_rejects_laws_that_do_not_form_a_chain():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)
    )
    first, _, third = discover(model, torch.randn(6, 3))
    with pytest.raises(LawError, match="do not form a chain"):
        telescope([first, third])
    with pytest.raises(LawError, match="no laws to telescope"):
        telescope([])


def test_laws_expire_when_the_buffers_they_rest_on_change():
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double().eval()
    x = torch.randn(9, 5, dtype=torch.float64)
    through_mean, after_norm = discover(model, x)
    assert [*through_mean.buffers] == ["1.running_mean"]
    assert not after_norm.buffers
    output = model(x)
    rebalance_([through_mean, after_norm])
    torch.testing.assert_close(model(x), output)
    model.train()
    model(x + 1.0)
    model.eval()
    for use in (lambda: rebalance_([through_mean]), lambda: through_mean.rescale_(torch.ones(8))):
        before = model[0].weight.detach().clone()
        with pytest.raises(ExpiredLawError, match=r"1.running_mean(.|\n)*discover again"):
            use()
        assert torch.equal(model[0].weight, before)
    output = model(x)
    rebalance_(discover(model, x))
    torch.testing.assert_close(model(x), output)


def test_exponents_must_be_positive_and_one_per_slot():
    _, law = mlp_with_law()
    for exponents in ((1,), (1, 0)):
        with pytest.raises(LawError, match="2 positive exponents"):
            Law(law.incoming, law.outgoing, exponents)


@pytest.mark.parametrize("factors", [3.0, torch.ones(3), -torch.ones(8), torch.full((8,), float("inf"))])
def test_factors_that_are_no_rescaling_are_refused(factors):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    (law,), before = discover(model, torch.rand(5, 6)), copy.deepcopy(model.state_dict())
    with pytest.raises(LawError, match=r"positive factors|infinite"):
        law.rescale_(factors)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
