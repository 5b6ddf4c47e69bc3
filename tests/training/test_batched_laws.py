import numpy as np
import pytest
import torch

from equipoise.errors import GradientError
from equipoise.laws.discover import discover
from equipoise.nn.stack import Stack
from equipoise.training.batched_laws import BatchedLaws, discover_on_small_graph
from tests.networks import gatv2, graph, loss


@pytest.fixture
def network():
    model = gatv2([6, 8, 8, 3], heads=2, share_weights=False).double()
    inputs = graph(dtype=torch.float64)
    return model, inputs, discover(model, *inputs)


def concatenate(tensors):
    return torch.cat(list(tensors)).numpy()


def test_values_equal_those_of_the_laws(network):
    model, inputs, laws = network
    loss(model(*inputs)).backward()
    balance = BatchedLaws(laws, range(1, len(laws) + 1)).balance()
    np.testing.assert_allclose(balance.c, concatenate(law.imbalance() for law in laws), atol=1e-12)
    np.testing.assert_allclose(balance.delta, concatenate(law.residual() for law in laws), atol=1e-14)
    drift = concatenate(law.predicted_drift(0.3, 0.1) for law in laws)
    np.testing.assert_allclose(balance.predicted_drift(0.3, 0.1), drift, atol=1e-12)
    terms = concatenate(sum(slot.gradient_product().abs() for slot in law.slots) for law in laws)
    np.testing.assert_allclose(balance.terms, terms, atol=1e-14)


def test_predicted_drift_of_one_step_is_exact(network):
    model, inputs, laws = network
    batch = BatchedLaws(laws, range(1, len(laws) + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.02)
    loss(model(*inputs)).backward()
    before, predicted = batch.imbalance(), batch.balance().predicted_drift(0.5, 0.02)
    optimizer.step()
    assert np.abs(predicted).max() > 1e-5, "no drift: the test would pass trivially"
    np.testing.assert_allclose(batch.imbalance() - before, predicted, atol=1e-14)


def test_laws_of_one_layer_are_adjacent(network):
    _, _, laws = network
    first, second, *_ = (law.imbalance().numpy() for law in laws)
    batch = BatchedLaws([laws[0], laws[1], laws[0]], [2, 1, 2])
    layers = dict(batch.split_by_layer(batch.imbalance()))
    assert list(layers) == [2, 1]
    np.testing.assert_allclose(layers[2], np.concatenate([first, first]), atol=1e-12)
    np.testing.assert_allclose(layers[1], second, atol=1e-12)


def test_values_of_a_layer_are_copies(network):
    """A view would keep the values of all layers alive."""
    _, _, laws = network
    batch = BatchedLaws(laws, range(1, len(laws) + 1))
    assert all(values.base is None for _, values in batch.split_by_layer(batch.imbalance()))


def test_missing_gradients(network):
    _, _, laws = network
    batch = BatchedLaws(laws, range(1, len(laws) + 1))
    assert len(batch.imbalance()) == batch.neurons
    with pytest.raises(GradientError, match=r"has no gradient(.|\n)*loss.backward"):
        batch.balance()


def test_no_laws():
    assert BatchedLaws([], []).balance().c.shape == (0,)


def test_laws_from_the_small_graph_do_not_depend_on_the_data_or_the_random_state():
    model = Stack("gatv2", [30, 8, 8, 3])
    state = torch.get_rng_state()
    laws = discover_on_small_graph(model, 30)
    assert torch.equal(torch.get_rng_state(), state)
    x, edge_index = torch.randn(50, 30), torch.randint(0, 50, (2, 200))
    assert sorted(map(str, laws)) == sorted(map(str, discover(model, x, edge_index)))
