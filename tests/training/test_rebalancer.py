import copy

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, Adadelta, Adam

from equipoise.errors import ChoiceError, LawError, OptimizerError, TrainingError, TrainingWarning
from equipoise.experiments.run import run
from equipoise.experiments.spec import RunSpec
from equipoise.laws.discover import discover
from equipoise.laws.rebalance import rebalance_
from equipoise.training.loop import train
from equipoise.training.rebalancer import Rebalancer
from equipoise.training.recorder import Recorder
from tests.training.test_loop import plain_network

CRITERIA = ("weights", "gradients", "relative-gradients")


def loss_of(model, data):
    return F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])


def network(data):
    model = plain_network().double()
    data.x = data.x.double()
    return model, discover(model, data.x, data.edge_index)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_every_due_step_of_a_loop_rebalances(data, criterion):
    """The same as calls of ``rebalance_``, which builds everything anew."""
    model, laws = network(data)
    expected = copy.deepcopy(model)
    optimizers = [Adam(network.parameters(), lr=0.02) for network in (model, expected)]
    rebalancer = Rebalancer(laws, every=3, criterion=criterion, optimizer=optimizers[0])
    for step in range(1, 8):
        for network_, optimizer in zip((model, expected), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(network_, data).backward()
        rebalancer.step()
        if step % 3 == 0:
            remaining = rebalance_([law.bind(expected) for law in laws], optimizers[1], criterion)
            assert rebalancer.imbalance == remaining
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_train_rebalances_and_records_the_rescaled_step(data, criterion):
    model, laws = network(data)
    record = Recorder(model, laws, every=1)
    rebalancer = Rebalancer(laws, every=2, criterion=criterion, inputs=(data.x, data.edge_index))
    history = train(model, data, lr=0.1, epochs=8, rebalance=rebalancer, record=record)
    assert history.outcome == "finished"
    assert rebalancer.steps == 8
    frame = record.frame()
    largest = {
        name: frame[frame.quantity == f"balance/{name}"].groupby("epoch").value.apply(lambda values: values.abs().max())
        for name in ("c", "drift")
    }
    due, others = [2, 4, 6, 8], [1, 3, 5, 7]
    if criterion == "weights":
        assert largest["c"][due].max() < 1e-12
        assert largest["c"][others[1:]].min() > 1e-9
    if criterion == "gradients":  # the exact drift of a step of gradient descent is zero
        assert largest["drift"][due].max() < 1e-12 * largest["drift"][others].max() + 1e-14


def test_rebalanced_weights_under_plain_descent_change_only_the_parameters_of_the_function(data):
    """The loss before each step is that of the network without the rescaling of this step."""
    model, laws = network(data)
    plain = train(copy.deepcopy(model), data, lr=0.1, epochs=1)
    rebalanced = train(model, data, lr=0.1, epochs=1, rebalance=Rebalancer(laws, every=1))
    assert rebalanced.loss == plain.loss


def test_moments_follow_only_if_requested(data):
    moments = {}
    for follow in (True, False):
        model, laws = network(data)
        optimizer = Adam(model.parameters(), lr=0.01)
        before = [p.detach().clone() for p in model.parameters()]
        rebalancer = Rebalancer(laws, every=1, criterion="gradients", optimizer=optimizer, moments=follow)
        loss_of(model, data).backward()
        optimizer.step()
        first = [optimizer.state[p]["exp_avg"].clone() for p in model.parameters()]
        rebalancer.step()
        moments[follow] = [
            torch.equal(optimizer.state[p]["exp_avg"], m) for p, m in zip(model.parameters(), first, strict=True)
        ]
        assert not all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert all(moments[False])
    assert not any(moments[True][:2])  # the last layer's attention belongs to no law


def test_invalid_arguments(data):
    model, laws = network(data)
    with pytest.raises(TrainingError, match="every must be an integer of at least 1 step"):
        Rebalancer(laws, every=0)
    for every in (2.5, "10"):
        with pytest.raises(TrainingError, match="every must be an integer"):
            Rebalancer(laws, every=every)
    with pytest.raises(ChoiceError, match=r"unknown target 'convs\.9'"):
        Rebalancer(laws, targets={"convs.9": 1.0})
    for targets, message in ((["convs.1"], "got a list"), ({laws[0].slots[0].name: "a"}, "positive number, got 'a'")):
        with pytest.raises(LawError, match=message):
            Rebalancer(laws, targets=targets)
    with pytest.raises(LawError, match="not among the optimizer's parameters"):
        Rebalancer(laws, optimizer=SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1))
    with pytest.warns(TrainingWarning, match="no law to balance"):
        Rebalancer([])
    for wrong in (True, "weights", laws):
        with pytest.raises(TrainingError, match="expected a rebalancer"):
            train(model, data, lr=0.1, epochs=1, rebalance=wrong)
    with pytest.raises(ChoiceError, match="unknown criterion"):
        Rebalancer(laws, criterion="norms")
    with pytest.raises(LawError, match="expected a list of laws"):
        Rebalancer("laws")
    with pytest.raises(OptimizerError, match="state of Adadelta cannot be rescaled"):
        Rebalancer(laws, optimizer=Adadelta(model.parameters()))
    with pytest.raises(OptimizerError, match="Adadelta"):
        train(model, data, optimizer=Adadelta, epochs=1, rebalance=Rebalancer(laws))
    assert Rebalancer(laws, optimizer=SGD(model.parameters(), lr=0.1)).imbalance is None


def spec(**settings):
    defaults = {"dataset": "synthetic-citation", "depth": 3, "width": 8, "init": "llortho", "lr": 0.01, "epochs": 6}
    return RunSpec(**{**defaults, "optimizer": "adam", **settings})


def test_a_run_can_rebalance_and_clip():
    results = {
        name: run(spec(**settings))
        for name, settings in {
            "plain": {},
            "clipped": {"clip": 1e-3},
            "with moments": {"rebalance": 2},
            "without moments": {"rebalance": 2, "rebalance_moments": False},
            "gradients": {"rebalance": 2, "rebalance_criterion": "gradients"},
        }.items()
    }
    assert {result.outcome for result in results.values()} == {"finished"}
    losses = {name: result.curves["loss"].tolist() for name, result in results.items()}
    assert len({tuple(values) for values in losses.values()}) == len(losses)
    assert all(values[:2] == losses["plain"][:2] for name, values in losses.items() if name != "clipped")
