import copy

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.optim import LBFGS, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop
from torch_geometric.data import Data

from equipoise.errors import BalanceError, ChoiceError, ForwardError, GradientError, LawError, OptimizerError
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
    assert remaining <= 1e-12
    assert largest_imbalance(laws) == pytest.approx(remaining, abs=1e-14)
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


class Subclass(Adam):
    """As users write them: other behaviour, the same state."""


class ExtraState(Adam):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["difference"] = torch.zeros_like(parameter)


@pytest.mark.parametrize("optimizer_type", [Adadelta, Rprop, LBFGS])
def test_other_optimizers_are_refused_by_name(optimizer_type):
    model, laws = mlp_with_laws()
    message = f"state of {optimizer_type.__name__} cannot be rescaled"
    assert_rejected(model, laws, OptimizerError, message, optimizer_type(model.parameters()))


def test_unknown_state_of_a_subclass_is_refused_by_name():
    model, laws = mlp_with_laws()
    optimizer = ExtraState(model.parameters())
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    assert_rejected(model, laws, OptimizerError, "entry 'difference' in the state of ExtraState", optimizer)
    assert_rejected(model, laws, OptimizerError, "expected a torch.optim.Optimizer, got str", "adam")


STATEFUL = {
    "momentum": lambda p: SGD(p, lr=0.0, momentum=0.9),
    "Adam": lambda p: Adam(p, lr=0.0, eps=0.0),
    "AMSGrad": lambda p: AdamW(p, lr=0.0, eps=0.0, weight_decay=0.0, amsgrad=True),
    "subclass": lambda p: Subclass(p, lr=0.0, eps=0.0),
    "NAdam": lambda p: NAdam(p, lr=0.0, eps=0.0),
    "RAdam": lambda p: RAdam(p, lr=0.0, eps=0.0),
    "Adamax": lambda p: Adamax(p, lr=0.0, eps=0.0),
    "RMSprop": lambda p: RMSprop(p, lr=0.0, eps=0.0, momentum=0.9, centered=True),
    "Adagrad": lambda p: Adagrad(p, lr=0.0, eps=0.0),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_state_is_that_of_training_the_rescaled_network(name):
    """With lr = 0 the parameters stay, so the gradients of both networks differ by the same factors at every step."""
    torch.manual_seed(0)
    model, laws = mlp_with_laws()
    model.double()
    rescaled = copy.deepcopy(model)
    rebalance_([law.bind(rescaled) for law in laws])
    optimizers = [STATEFUL[name](network.parameters()) for network in (model, rescaled)]
    for _ in range(4):
        for one, other in zip(model.parameters(), rescaled.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad * (one / other).detach()
        for optimizer in optimizers:
            optimizer.step()
    rebalance_(laws, optimizers[0])
    for one, other in zip(model.parameters(), rescaled.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=0.0)
        torch.testing.assert_close(dict(optimizers[0].state[one]), dict(optimizers[1].state[other]))


def network_with_gradients(dtype=torch.float64):
    torch.manual_seed(2)
    model = gatv2([FEATURES, 8, 8, 8, CLASSES], share_weights=True, bias=False).to(dtype)
    x, edge_index = graph(dtype=dtype)
    laws = discover(model, x, edge_index)
    loss(model(x, edge_index)).backward()
    return model, laws, (x, edge_index)


def test_balanced_gradients_minimise_the_gradient_and_stop_the_drift():
    model, laws, inputs = network_with_gradients()
    before = model(*inputs)
    drift = max(float(law.predicted_drift(0.1).abs().max()) for law in laws)
    assert rebalance_(laws, criterion="gradients", inputs=inputs) <= 1e-12
    assert relative_change(model(*inputs), before) < 1e-12
    minimum = sum(float(p.grad.square().sum()) for p in model.parameters())
    model.zero_grad()
    loss(model(*inputs)).backward()
    assert sum(float(p.grad.square().sum()) for p in model.parameters()) == pytest.approx(minimum)
    assert max(float(law.predicted_drift(0.1).abs().max()) for law in laws) < 1e-9 * drift
    for _ in range(10):
        other = copy.deepcopy(model)
        for law in laws:
            law.bind(other).rescale_((0.1 * torch.randn(law.neurons, dtype=torch.float64)).exp())
        other.zero_grad()
        loss(other(*inputs)).backward()
        assert sum(float(p.grad.square().sum()) for p in other.parameters()) > minimum


def relative_gradients(law):
    sides = (law.incoming, law.outgoing)
    return [sum(slot.squared_gradient() for slot in side) / sum(slot.squared_norm() for slot in side) for side in sides]


def test_relative_gradients_approach_each_other_by_at_most_a_factor_two():
    model, laws, inputs = network_with_gradients()
    before, weights = model(*inputs), model.conv1.lin_l.weight.detach().clone()
    imbalances = []
    for call in range(40):
        imbalances.append(rebalance_(laws, criterion="relative-gradients"))
        if call == 0:
            factors = (model.conv1.lin_l.weight / weights).detach()
            assert float(factors.min()) >= 0.5 - 1e-9
            assert float(factors.max()) <= 2.0 + 1e-9
    assert imbalances[0] > 0.1
    assert imbalances[-1] < 1e-3
    incoming, outgoing = relative_gradients(laws[1])
    torch.testing.assert_close(incoming, outgoing, rtol=5e-3, atol=0.0)
    assert relative_change(model(*inputs), before) < 1e-12


def test_targets_set_the_size_of_a_layer():
    model, laws, _ = network_with_gradients()
    target = {"conv2": 0.01}
    assert rebalance_(laws, criterion="gradients", targets=target) <= 1e-12
    size = {name: 100.0 if name.startswith("conv2.") else 1.0 for name, _ in model.named_parameters()}
    for law in laws:
        incoming, outgoing = (
            sum(size[slot.name] * slot.squared_gradient() for slot in side) for side in (law.incoming, law.outgoing)
        )
        torch.testing.assert_close(incoming, outgoing)
    with pytest.raises(ChoiceError, match="unknown target 'conv'"):
        rebalance_(laws, targets={"conv": 2.0})
    with pytest.raises(LawError, match="positive"):
        rebalance_(laws, targets={"conv2": 0.0})


def test_criteria_of_gradients_skip_neurons_without_a_signal():
    _, laws, _ = network_with_gradients()
    for slot in laws[1].incoming:
        slot.entries(slot.parameter.grad)[..., 3, :] = 0.0
    weights = [slot.entries(slot.parameter.detach())[..., 3, :].clone() for slot in laws[1].incoming]
    assert rebalance_(laws, criterion="gradients") <= 1e-12
    rebalance_(laws, criterion="relative-gradients")
    direction = [
        slot.entries(slot.parameter.detach())[..., 3, :] / w for slot, w in zip(laws[1].incoming, weights, strict=True)
    ]
    assert all(bool(torch.isfinite(values).all()) for values in direction)


def test_criterion_is_validated():
    model, laws = mlp_with_laws()
    with pytest.raises(ChoiceError, match="unknown criterion 'weight'"):
        rebalance_(laws, criterion="weight")
    with pytest.raises(GradientError, match="no gradient"):
        rebalance_(laws, criterion="gradients")
    model(torch.randn(4, 5)).sum().backward()
    model[0].weight.grad[0, 0] = float("nan")
    with pytest.raises(BalanceError, match=r"the gradient of 0\.weight is not finite"):
        rebalance_(laws, criterion="gradients")


def test_a_change_of_the_outputs_is_undone():
    model, laws = mlp_with_laws()
    optimizer = Adam(model.parameters())
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    model[1] = nn.GELU()
    state = copy.deepcopy((model.state_dict(), [p.grad for p in model.parameters()], optimizer.state_dict()))
    with pytest.raises(BalanceError, match=r"changed the outputs .* this was undone"):
        rebalance_(laws, optimizer, inputs=torch.randn(4, 5))
    torch.testing.assert_close(
        (model.state_dict(), [p.grad for p in model.parameters()], optimizer.state_dict()), state, rtol=0.0, atol=0.0
    )
    model[1] = nn.ReLU()
    assert rebalance_(laws, optimizer, inputs={"input": torch.randn(4, 5)}) <= 1e-6
    for nothing in (torch.full((4, 5), float("nan")), torch.rand(0, 5)):
        with pytest.raises(ForwardError, match="no finite number on inputs="):
            rebalance_(laws, inputs=nothing)
    with pytest.raises(ForwardError, match="the model fails on inputs="):
        rebalance_(laws, inputs=torch.randn(4, 6))
    with pytest.raises(LawError, match="2 models"):
        rebalance_([laws[0], laws[1].bind(copy.deepcopy(model))], inputs=torch.randn(4, 5))


def test_confirmation_uses_equal_random_numbers_and_restores_buffers():
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    x = torch.randn(20, 5)
    laws = discover(model, x)
    model(x)
    buffers, state = copy.deepcopy(dict(model.named_buffers())), torch.get_rng_state()
    rebalance_(laws, inputs=(x,))
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype):
    model, laws = mlp_with_laws()
    model.to(dtype)
    assert rebalance_(laws, inputs=torch.randn(4, 5).to(dtype)) <= 1e-2


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


def test_inputs_as_a_data_object():
    x, edge_index = graph()
    model = gatv2([FEATURES, 8, CLASSES])
    laws = discover(model, x, edge_index)
    assert rebalance_(laws, inputs=Data(x=x, edge_index=edge_index)) <= 1e-6
    model.forward = lambda x, edge_index: model.conv2(model.conv1(x, edge_index).tanh(), edge_index)
    with torch.no_grad():
        model.conv1.lin_l.weight.mul_(3.0)
    with pytest.raises(BalanceError, match="changed the outputs"):
        rebalance_(laws, inputs=Data(x=x, edge_index=edge_index))


@pytest.mark.parametrize("depth", [4, 10, 30])
def test_networks_far_from_balance_converge(depth):
    torch.manual_seed(0)
    x = torch.randn(20, 8, dtype=torch.float64)
    hidden = [layer for _ in range(depth) for layer in (nn.ReLU(), nn.Linear(16, 16))]
    model = nn.Sequential(nn.Linear(8, 16), *hidden, nn.ReLU(), nn.Linear(16, 2)).double()
    before = model(x)
    laws = discover(model, x)
    for law in laws:
        law.rescale_(torch.exp(20.0 * torch.randn(law.neurons, dtype=torch.float64)))  # λ from 1e-25 to 1e25
    assert rebalance_(laws) <= 1e-12
    assert relative_change(model(x), before) < 1e-10


def test_squares_that_overflow_in_sum_are_named():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    laws = discover(model, torch.randn(4, 2, dtype=torch.float64))
    with torch.no_grad():
        model[0].weight.fill_(1e154)  # each square is finite
        model[0].bias.fill_(1e154)
    with pytest.raises(BalanceError, match="weight is not finite"):
        rebalance_(laws)
