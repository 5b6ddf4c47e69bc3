import copy

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from equipoise.errors import BalanceError, LawError, OptimizerError
from equipoise.laws.discover import discover
from equipoise.laws.law import Law, imbalance
from equipoise.laws.rebalance import rebalance_
from tests.networks import CLASSES, FEATURES, gatv2, graph, loss, random_gatv2


def largest_imbalance(laws) -> float:
    return max(float(law.relative_imbalance().abs().max()) for law in laws)


def relative_change(new, old) -> float:
    return float((new - old).detach().abs().max() / old.detach().abs().max())


@given(random_gatv2(), st.integers(0, 99))
def test_preserves_the_function_and_removes_the_imbalance_in_float64(model, seed):
    x, edge_index = graph(seed, torch.float64)
    laws = discover(model, x, edge_index)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)
    before = model(x, edge_index)
    assume(bool(before.any()))  # not all ReLUs of a layer are dead
    remaining = rebalance_(laws)
    assert remaining == largest_imbalance(laws) <= 1e-12
    assert relative_change(model(x, edge_index), before) < 1e-12


def test_float32_at_the_default_initialisation():
    model = gatv2([FEATURES, 16, 16, 16, CLASSES], heads=2)
    x, edge_index = graph()
    laws = discover(model, x, edge_index)
    before = model(x, edge_index)
    assert largest_imbalance(laws) > 0.1
    assert rebalance_(laws) <= 1e-6
    assert relative_change(model(x, edge_index), before) < 1e-5


def test_agrees_with_coordinate_descent():
    model = gatv2([FEATURES, 8, 8, 8, CLASSES], share_weights=True, bias=False).double()
    x, edge_index = graph(dtype=torch.float64)
    laws = discover(model, x, edge_index)
    reference = copy.deepcopy(model)
    for _ in range(400):  # λ⁴ = outgoing / incoming, one law at a time
        for law in (law.bind(reference) for law in laws):
            incoming, outgoing = law.norms()
            law.rescale_((outgoing / incoming) ** 0.25)
    rebalance_(laws)
    for actual, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


def test_minimises_the_norm_among_rescaled_networks():
    model = gatv2([FEATURES, 8, 8, CLASSES]).double()
    x, edge_index = graph(dtype=torch.float64)
    laws = discover(model, x, edge_index)
    rebalance_(laws)
    minimum = sum(float(p.detach().square().sum()) for p in model.parameters())
    for _ in range(20):
        other = copy.deepcopy(model)
        for law in laws:
            law.bind(other).rescale_((0.1 * torch.randn(law.neurons, dtype=torch.float64)).exp())
        assert sum(float(p.detach().square().sum()) for p in other.parameters()) > minimum


def test_deep_networks_are_balanced_up_to_rounding():
    model = gatv2([FEATURES, *[8] * 39, CLASSES], share_weights=True, bias=False).double()
    laws = discover(model, *graph(dtype=torch.float64))
    assert len(laws) == 39
    assert rebalance_(laws) <= 1e-12


def train_few_steps(make_optimizer, steps: int = 5):
    """Train a small network; return model, laws, optimizer, a training step and the forward pass."""
    torch.manual_seed(1)
    model = gatv2([FEATURES, 8, 8, CLASSES]).double()
    x, edge_index = graph(dtype=torch.float64)
    optimizer = make_optimizer(model.parameters())

    def step():
        optimizer.zero_grad()
        loss(model(x, edge_index)).backward()
        optimizer.step()

    for _ in range(steps):
        step()
    return model, discover(model, x, edge_index), optimizer, step, lambda: model(x, edge_index).detach()


def test_momentum_is_rescaled_with_the_parameters():
    """θ·m and θ·∇θ are invariant, since gradients scale by 1/λ where parameters scale by λ."""
    model, laws, optimizer, _, _ = train_few_steps(lambda p: SGD(p, lr=0.1, momentum=0.9))
    products = {n: p.detach() * optimizer.state[p]["momentum_buffer"] for n, p in model.named_parameters()}
    gradients = {n: p.detach() * p.grad for n, p in model.named_parameters()}
    rebalance_(laws, optimizer)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach() * optimizer.state[p]["momentum_buffer"], products[name])
        torch.testing.assert_close(p.detach() * p.grad, gradients[name])


@pytest.mark.parametrize("optimizer_type", [Adam, AdamW])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_moments_of_adam_are_those_of_the_rescaled_gradients(optimizer_type, amsgrad):
    """θ·m and θ²·v are invariant, since gradients scale by 1/λ where parameters scale by λ."""
    model, laws, optimizer, _, _ = train_few_steps(lambda p: optimizer_type(p, lr=0.01, amsgrad=amsgrad))
    powers = {"exp_avg": 1, "exp_avg_sq": 2} | ({"max_exp_avg_sq": 2} if amsgrad else {})

    def products():
        parameters = list(model.parameters())
        return [p.detach() ** power * optimizer.state[p][key] for p in parameters for key, power in powers.items()]

    before, old = products(), [p.detach().clone() for p in model.parameters()]
    rebalance_(laws, optimizer)
    torch.testing.assert_close(products(), before, rtol=1e-9, atol=0.0)
    assert sum(not torch.allclose(p, q, rtol=1e-3) for p, q in zip(model.parameters(), old, strict=True)) > 3


def test_gradients_are_those_of_the_rescaled_network():
    model, laws, optimizer, _, _ = train_few_steps(lambda p: SGD(p, lr=0.1))
    x, edge_index = graph(dtype=torch.float64)
    optimizer.zero_grad()
    loss(model(x, edge_index)).backward()
    rebalance_(laws, optimizer)
    rescaled = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    loss(model(x, edge_index)).backward()
    for gradient, p in zip(rescaled, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, p.grad)


def test_training_continues_after_rebalancing():
    _, laws, optimizer, step, output = train_few_steps(lambda p: Adam(p, lr=0.01))
    before = output()
    rebalance_(laws, optimizer)
    torch.testing.assert_close(output(), before)
    for _ in range(3):
        step()
    assert bool(torch.isfinite(output()).all())


def mlp_with_laws():
    model = nn.Sequential(
        nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 3)
    )
    return model, discover(model, torch.randn(6, 5))


def assert_rejected(model, laws, error_type, message, optimizer=None):
    """``rebalance_`` raises and leaves the model unchanged."""
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error_type, match=message):
        rebalance_(laws, optimizer)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) or before[key].isnan().any() for key in before)


def test_rejects_zero_norm_on_one_side():
    model, laws = mlp_with_laws()
    model[2].weight.data[:, 3] = 0.0
    assert_rejected(model, laws, BalanceError, r"zero norm on one side only \(neuron 3: all outgoing weights are 0\)")


def test_dead_neuron_does_not_change():
    model, laws = mlp_with_laws()
    model[0].weight.data[3] = 0.0
    model[2].weight.data[:, 3] = 0.0
    assert rebalance_(laws) <= 1e-6
    assert not bool(model[0].weight[3].any())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rejects_parameters_that_are_not_finite(value):
    model, laws = mlp_with_laws()
    model[4].weight.data[0, 0] = value
    assert_rejected(model, laws, BalanceError, "4.weight is not finite")


def test_rejects_a_law_that_does_not_match_its_model():
    model, laws = mlp_with_laws()
    model[2] = nn.Linear(8, 9, bias=False)
    assert_rejected(model, laws, LawError, "run discover again")


def test_rejects_the_optimizer_of_another_model():
    model, laws = mlp_with_laws()
    other, _ = mlp_with_laws()
    assert_rejected(model, laws, LawError, "not among the optimizer's parameters", Adam(other.parameters()))


def test_rejects_unknown_optimizer_state():
    model, laws = mlp_with_laws()
    optimizer = RMSprop(model.parameters())
    assert rebalance_(laws, optimizer) <= 1e-6  # no state before the first step
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    assert_rejected(model, laws, OptimizerError, "state of RMSprop", optimizer)
    assert_rejected(model, laws, OptimizerError, "expected a torch.optim.Optimizer, got str", "adam")


def test_rejects_neurons_connected_through_zeros_only():
    """The infimum of the norm is not attained."""
    model, laws = mlp_with_laws()
    with torch.no_grad():
        model[0].weight.zero_()[0, 0] = 1.0
        model[2].weight.zero_()
        model[2].weight[0, 0] = 1.0
        model[2].weight[1, 0] = 1.0
        model[4].weight.zero_()[0, 0] = 1.0
    assert_rejected(model, laws, BalanceError, "zero norm on one side only")


def test_scale_free_laws_are_skipped():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 3))
    laws = discover(model, torch.randn(6, 5))
    direction = model[0].parametrizations.weight.original1
    before = direction.detach().clone()
    assert rebalance_(laws) <= 1e-6
    assert torch.equal(direction, before)
    assert rebalance_([law for law in laws if not law.outgoing]) == 0.0


def test_single_law():
    _, (first, second) = mlp_with_laws()
    rebalance_([first])
    assert float(first.relative_imbalance().abs().max()) <= 1e-6
    assert float(second.relative_imbalance().abs().max()) > 1e-3
    assert isinstance(first, Law)
    assert len(imbalance([first])) == 1
