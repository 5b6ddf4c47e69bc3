import numpy as np
import pytest
import torch

from equipoise.errors import GradientError
from equipoise.laws.discover import discover
from equipoise.train.ledger import Ledger
from tests.networks import gatv2, graph, loss


@pytest.fixture
def network():
    model = gatv2([6, 8, 8, 3], heads=2, share_weights=False).double()
    inputs = graph(dtype=torch.float64)
    return model, inputs, discover(model, *inputs)


def joined(tensors):
    return torch.cat(list(tensors)).numpy()


def test_numbers_are_those_of_the_laws(network):
    model, inputs, laws = network
    loss(model(*inputs)).backward()
    balance = Ledger(laws, range(1, len(laws) + 1)).balance()
    np.testing.assert_allclose(balance.c, joined(law.imbalance() for law in laws), atol=1e-12)
    np.testing.assert_allclose(balance.delta, joined(law.residual() for law in laws), atol=1e-14)
    drift = joined(law.predicted_drift(0.3, 0.1) for law in laws)
    np.testing.assert_allclose(balance.predicted_drift(0.3, 0.1), drift, atol=1e-12)
    terms = joined(sum(slot.gradient_product().abs() for slot in law.slots) for law in laws)
    np.testing.assert_allclose(balance.terms, terms, atol=1e-14)


def test_drift_of_one_step_is_predicted_exactly(network):
    model, inputs, laws = network
    ledger = Ledger(laws, range(1, len(laws) + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.02)
    loss(model(*inputs)).backward()
    before, predicted = ledger.imbalance(), ledger.balance().predicted_drift(0.5, 0.02)
    optimizer.step()
    assert np.abs(predicted).max() > 1e-5, "nothing drifts: the test shows nothing"
    np.testing.assert_allclose(ledger.imbalance() - before, predicted, atol=1e-14)


def test_laws_of_one_layer_stand_side_by_side(network):
    _, _, laws = network
    first, second, *_ = (law.imbalance().numpy() for law in laws)
    ledger = Ledger([laws[0], laws[1], laws[0]], [2, 1, 2])
    layers = dict(ledger.by_layer(ledger.imbalance()))
    assert list(layers) == [2, 1]
    np.testing.assert_allclose(layers[2], np.concatenate([first, first]), atol=1e-12)
    np.testing.assert_allclose(layers[1], second, atol=1e-12)


def test_layers_are_copies(network):
    """What is kept of a record must not keep the rest of it alive."""
    _, _, laws = network
    ledger = Ledger(laws, range(1, len(laws) + 1))
    assert all(values.base is None for _, values in ledger.by_layer(ledger.imbalance()))


def test_without_gradients_there_is_only_c(network):
    _, _, laws = network
    ledger = Ledger(laws, range(1, len(laws) + 1))
    assert len(ledger.imbalance()) == ledger.neurons
    with pytest.raises(GradientError, match=r"has no gradient(.|\n)*loss.backward"):
        ledger.balance()


def test_no_laws():
    assert Ledger([], []).balance().c.shape == (0,)
