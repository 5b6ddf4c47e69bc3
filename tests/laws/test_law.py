import copy

import pytest
import torch
from torch import nn

from equipoise.errors import ChoiceError, GradientError, LawError
from equipoise.laws.discover import discover
from equipoise.laws.law import Law, imbalance, residual
from equipoise.laws.rebalance import rebalance_
from equipoise.laws.slot import Slot
from equipoise.laws.telescope import telescope
from tests.networks import CLASSES, FEATURES, gatv2, graph, loss


def two_layers() -> tuple[nn.Module, Law]:
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
    rows, columns = Slot(model, "0.weight", (4, 3), 4, inner=3), Slot(model, "2.weight", (2, 4), 4)
    return model, Law((rows,), (columns,))


def test_prints_as_mathematics():
    _, law = two_layers()
    assert str(law) == "0.weight[i,:] = 2.weight[:,i]   (4 neurons)"


def test_imbalance_is_the_difference_of_squared_norms():
    model, law = two_layers()
    expected = model[0].weight.square().sum(1) - model[2].weight.square().sum(0)
    torch.testing.assert_close(law.imbalance(), expected.detach())
    assert imbalance([law], per="layer")[0] == pytest.approx(float(expected.detach().sum()))
    assert float(law.relative_imbalance().abs().max()) <= 1.0


def test_relative_imbalance_of_a_dead_neuron_is_zero():
    model, law = two_layers()
    model[0].weight.data[1] = 0.0
    model[2].weight.data[:, 1] = 0.0
    assert float(law.relative_imbalance()[1]) == 0.0
    model[2].weight.data[:, 1] = 1.0
    assert float(law.relative_imbalance()[1]) == -1.0


def test_residual_needs_gradients_and_is_zero_for_a_law_only():
    model, law = two_layers()
    with pytest.raises(GradientError):
        residual([law])
    loss(model(torch.randn(8, 3, dtype=torch.float64))).backward()
    assert float(law.residual().abs().max()) < 1e-15
    assert float(law.incoming[0].gradient_product().abs().max()) > 1e-4
    half = Law(law.incoming, ())
    assert float(half.residual().abs().max()) > 1e-4
    assert abs(float(residual([law], per="layer")[0])) < 1e-15


def test_per_is_a_choice():
    _, law = two_layers()
    with pytest.raises(ChoiceError, match="did you mean 'layer'"):
        imbalance([law], per="layers")


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("lr", [0.01, 0.5])
def test_drift_of_c_is_predicted_to_rounding_over_50_steps(lr, weight_decay):
    torch.manual_seed(0)
    model = gatv2([FEATURES, 8, 8, CLASSES], heads=2).double()
    x, edge_index = graph(dtype=torch.float64)
    laws = discover(model, x, edge_index)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=weight_decay)
    start, predicted = imbalance(laws), [torch.zeros(law.neurons, dtype=torch.float64) for law in laws]
    for _ in range(50):
        optimizer.zero_grad()
        loss(model(x, edge_index)).backward()
        predicted = [total + law.predicted_drift(lr, weight_decay) for total, law in zip(predicted, laws, strict=True)]
        optimizer.step()
    for before, drift, after in zip(start, predicted, imbalance(laws), strict=True):
        measured = after - before
        assert float(measured.abs().max()) > 1e-6, "nothing drifted: the test shows nothing"
        error = float((measured - drift).abs().max() / measured.abs().max())
        assert error < 1e-10, f"measured drift differs from the predicted one by {error:.1e}"


def test_residual_vanishes_under_adam_too_where_c_is_not_conserved():
    torch.manual_seed(0)
    model = gatv2([FEATURES, 8, CLASSES]).double()
    x, edge_index = graph(dtype=torch.float64)
    (law,) = discover(model, x, edge_index)
    optimizer, start = torch.optim.Adam(model.parameters(), lr=0.05), law.imbalance()
    for _ in range(10):
        optimizer.zero_grad()
        loss(model(x, edge_index)).backward()
        assert float(law.residual().abs().max()) < 1e-14
        optimizer.step()
    assert float((law.imbalance() - start).abs().max()) > 1e-2


def test_rescale_changes_parameters_but_not_the_function():
    model, law = two_layers()
    x, before = torch.randn(8, 3, dtype=torch.float64), copy.deepcopy(model)
    law.rescale_(torch.tensor([2.0, 0.5, 3.0, 1.0], dtype=torch.float64))
    assert not torch.equal(model[0].weight, before[0].weight)
    torch.testing.assert_close(model(x), before(x))


@pytest.mark.parametrize("factors", [torch.ones(3), torch.tensor([1.0, -1.0, 1.0, 1.0]), torch.zeros(4)])
def test_rescale_refuses_what_is_no_rescaling(factors):
    model, law = two_layers()
    before = model[0].weight.clone()
    with pytest.raises(LawError, match="positive factors"):
        law.rescale_(factors)
    assert torch.equal(model[0].weight, before)


def test_a_law_needs_slots_of_one_size():
    model, law = two_layers()
    with pytest.raises(LawError, match="same number of neurons"):
        Law(law.incoming, (Slot(model, "0.weight", (4, 3), 3),))
    with pytest.raises(LawError, match="at least one incoming"):
        Law((), law.outgoing)


def test_binds_to_a_copy():
    model, law = two_layers()
    other = copy.deepcopy(model)
    other[0].weight.data.mul_(2.0)
    torch.testing.assert_close(law.bind(other).norms()[0], 4.0 * law.norms()[0])


def test_works_in_float32_on_the_live_parameters():
    model, law = two_layers()
    model.float()
    assert law.imbalance().dtype == torch.float32
    model[0].weight.data.zero_()
    assert bool((law.imbalance() <= 0).all())


@pytest.mark.parametrize("use", [imbalance, residual, rebalance_, telescope])
@pytest.mark.parametrize("given", ["one law", 3, "text", [3]])
def test_what_is_no_list_of_laws_is_named(use, given):
    _, law = two_layers()
    with pytest.raises(LawError, match=r"expected a list of laws, got (.|\n)*what discover"):
        use(law if given == "one law" else given)
