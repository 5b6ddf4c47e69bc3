import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from equipoise.errors import BalanceError, LawError, OptimizerError
from equipoise.laws.discover import discover
from equipoise.laws.law import Law, imbalance
from equipoise.laws.rebalance import rebalance_
from tests.laws.test_discover import stacks
from tests.networks import CLASSES, FEATURES, gatv2, graph, loss


def worst(laws) -> float:
    return max(float(law.relative_imbalance().abs().max()) for law in laws)


def relative(new, old) -> float:
    return float((new - old).detach().abs().max() / old.detach().abs().max())


@given(stacks(), st.integers(0, 99))
def test_same_function_and_no_imbalance_in_float64(model, seed):
    x, edge_index = graph(seed, torch.float64)
    laws = discover(model, x, edge_index)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)
    before = model(x, edge_index)
    left = rebalance_(laws)
    assert left == worst(laws) <= 1e-12
    assert relative(model(x, edge_index), before) < 1e-12


def test_float32_on_the_usual_initialisation():
    model = gatv2([FEATURES, 16, 16, 16, CLASSES], heads=2)
    x, edge_index = graph()
    laws = discover(model, x, edge_index)
    before, out_of_balance = model(x, edge_index), worst(laws)
    assert out_of_balance > 0.1
    assert rebalance_(laws) <= 1e-6
    assert relative(model(x, edge_index), before) < 1e-5


def test_agrees_with_sweeps_of_one_neuron_at_a_time():
    model = gatv2([FEATURES, 8, 8, 8, CLASSES], share_weights=True, bias=False).double()
    x, edge_index = graph(dtype=torch.float64)
    laws = discover(model, x, edge_index)
    swept = copy.deepcopy(model)
    for _ in range(400):  # the slow, obvious way: λ⁴ = outgoing / incoming, law after law
        for law in (law.bind(swept) for law in laws):
            incoming, outgoing = law.norms()
            law.rescale_((outgoing / incoming) ** 0.25)
    rebalance_(laws)
    for fast, slow in zip(model.parameters(), swept.parameters(), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-10)


def test_is_the_least_norm_of_the_orbit():
    model = gatv2([FEATURES, 8, 8, CLASSES]).double()
    x, edge_index = graph(dtype=torch.float64)
    laws = discover(model, x, edge_index)
    rebalance_(laws)
    least = sum(float(p.detach().square().sum()) for p in model.parameters())
    for _ in range(20):
        other = copy.deepcopy(model)
        for law in laws:
            law.bind(other).rescale_((0.1 * torch.randn(law.neurons, dtype=torch.float64)).exp())
        assert sum(float(p.detach().square().sum()) for p in other.parameters()) > least


def test_deep_chains_are_balanced_to_rounding():
    model = gatv2([FEATURES, *[8] * 39, CLASSES], share_weights=True, bias=False).double()
    laws = discover(model, *graph(dtype=torch.float64))
    assert len(laws) == 39
    assert rebalance_(laws) <= 1e-12


def trained(make, steps: int = 5):
    """A network after a few steps of an optimizer, with its laws and a step to go on with."""
    torch.manual_seed(1)
    model = gatv2([FEATURES, 8, 8, CLASSES]).double()
    x, edge_index = graph(dtype=torch.float64)
    optimizer = make(model.parameters())

    def step():
        optimizer.zero_grad()
        loss(model(x, edge_index)).backward()
        optimizer.step()

    for _ in range(steps):
        step()
    return model, discover(model, x, edge_index), optimizer, step, lambda: model(x, edge_index).detach()


def test_momentum_follows_so_that_the_velocity_of_the_function_is_the_same():
    """A small step along the velocity moves the function the same way before and after, up to the metric λ²."""
    model, laws, optimizer, _, _ = trained(lambda p: SGD(p, lr=0.1, momentum=0.9))
    products = {n: p.detach() * optimizer.state[p]["momentum_buffer"] for n, p in model.named_parameters()}
    gradients = {n: p.detach() * p.grad for n, p in model.named_parameters()}
    rebalance_(laws, optimizer)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach() * optimizer.state[p]["momentum_buffer"], products[name])
        torch.testing.assert_close(p.detach() * p.grad, gradients[name])


@pytest.mark.parametrize("make", [Adam, AdamW])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_follows_as_if_it_had_seen_the_rescaled_gradients_all_along(make, amsgrad):
    """Gradients scale by 1/λ where parameters scale by λ, so θ·m and θ²·v stay what they were."""
    model, laws, optimizer, _, _ = trained(lambda p: make(p, lr=0.01, amsgrad=amsgrad))
    powers = {"exp_avg": 1, "exp_avg_sq": 2} | ({"max_exp_avg_sq": 2} if amsgrad else {})

    def products():
        parameters = list(model.parameters())
        return [p.detach() ** power * optimizer.state[p][key] for p in parameters for key, power in powers.items()]

    before, old = products(), [p.detach().clone() for p in model.parameters()]
    rebalance_(laws, optimizer)
    torch.testing.assert_close(products(), before, rtol=1e-9, atol=0.0)
    assert sum(not torch.allclose(p, q, rtol=1e-3) for p, q in zip(model.parameters(), old, strict=True)) > 3


def test_gradients_after_are_those_of_the_rescaled_network():
    model, laws, optimizer, _, _ = trained(lambda p: SGD(p, lr=0.1))
    x, edge_index = graph(dtype=torch.float64)
    optimizer.zero_grad()
    loss(model(x, edge_index)).backward()
    rebalance_(laws, optimizer)
    followed = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    loss(model(x, edge_index)).backward()
    for gradient, p in zip(followed, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, p.grad)


def test_training_goes_on_after():
    _, laws, optimizer, step, output = trained(lambda p: Adam(p, lr=0.01))
    before = output()
    rebalance_(laws, optimizer)
    torch.testing.assert_close(output(), before)
    for _ in range(3):
        step()
    assert bool(torch.isfinite(output()).all())


def mlp():
    model = nn.Sequential(
        nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 3)
    )
    return model, discover(model, torch.randn(6, 5))


def breaks(model, laws, kind, message, optimizer=None):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(kind, match=message):
        rebalance_(laws, optimizer)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) or before[key].isnan().any() for key in before)


def test_refuses_a_zero_norm_on_one_side_and_changes_nothing():
    model, laws = mlp()
    model[2].weight.data[:, 3] = 0.0
    breaks(model, laws, BalanceError, r"zero norm on one side only \(neuron 3: all outgoing weights are 0\)")


def test_a_dead_neuron_is_left_alone():
    model, laws = mlp()
    model[0].weight.data[3] = 0.0
    model[2].weight.data[:, 3] = 0.0
    assert rebalance_(laws) <= 1e-6
    assert not bool(model[0].weight[3].any())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_refuses_what_is_not_finite(value):
    model, laws = mlp()
    model[4].weight.data[0, 0] = value
    breaks(model, laws, BalanceError, "4.weight is not finite")


def test_refuses_a_law_that_no_longer_fits_its_model():
    model, laws = mlp()
    model[2] = nn.Linear(8, 9, bias=False)
    breaks(model, laws, LawError, "discover its laws again")


def test_refuses_an_optimizer_of_another_model():
    model, laws = mlp()
    other, _ = mlp()
    breaks(model, laws, LawError, "not among the parameters that this optimizer trains", Adam(other.parameters()))


def test_refuses_state_that_it_does_not_know():
    model, laws = mlp()
    optimizer = RMSprop(model.parameters())
    assert rebalance_(laws, optimizer) <= 1e-6  # no state yet: nothing to follow
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    breaks(model, laws, OptimizerError, "state of RMSprop", optimizer)
    breaks(model, laws, OptimizerError, "expected a torch.optim.Optimizer, got str", "adam")


def test_refuses_what_has_no_balance():
    """Two neurons connected through zeros only: the norm falls for ever, and no network attains the least."""
    model, laws = mlp()
    with torch.no_grad():
        model[0].weight.zero_()[0, 0] = 1.0
        model[2].weight.zero_()
        model[2].weight[0, 0] = 1.0
        model[2].weight[1, 0] = 1.0
        model[4].weight.zero_()[0, 0] = 1.0
    breaks(model, laws, BalanceError, "zero norm on one side only")


def test_scale_free_laws_are_passed_over():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 3))
    laws = discover(model, torch.randn(6, 5))
    direction = model[0].parametrizations.weight.original1
    before = direction.detach().clone()
    assert rebalance_(laws) <= 1e-6
    assert torch.equal(direction, before)
    assert rebalance_([law for law in laws if not law.outgoing]) == 0.0


def test_one_law_alone():
    _, (first, second) = mlp()
    rebalance_([first])
    assert float(first.relative_imbalance().abs().max()) <= 1e-6
    assert float(second.relative_imbalance().abs().max()) > 1e-3
    assert isinstance(first, Law)
    assert len(imbalance([first])) == 1
