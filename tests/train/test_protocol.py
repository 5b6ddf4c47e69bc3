import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data

from equipoise.data.load import load_dataset
from equipoise.errors import ChoiceError, TrainingError
from equipoise.init.schemes import initialize_
from equipoise.kernels.denormals import are_zero
from equipoise.nn.stack import Stack
from equipoise.train.protocol import _same_in_both_modes, train
from equipoise.train.state import TrainingState
from tests.real_data import require

NODES, FEATURES, CLASSES = 40, 6, 3


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(NODES) % CLASSES
    x = F.one_hot(y, FEATURES).float() + 0.3 * torch.randn(NODES, FEATURES, generator=generator)
    masks = {}
    for number, name in enumerate(("train_mask", "val_mask", "test_mask")):
        masks[name] = torch.zeros(NODES, dtype=torch.bool)
        masks[name][number * 13 : (number + 1) * 13] = True
    return Data(x=x, y=y, edge_index=torch.randint(0, NODES, (2, 60), generator=generator), **masks)


def network(dropout=0.0, seed=0):
    model = Stack("gatv2", [FEATURES, 8, CLASSES], dropout=dropout)
    return initialize_(model, "bal-o", generator=torch.Generator().manual_seed(seed))


def direct(model, data, optimizer, epochs):
    """The protocol, word by word: a step in training mode, then an evaluation."""
    losses, val, test = [], [], []
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            predicted = model(data.x, data.edge_index).argmax(-1)
        val.append((predicted == data.y)[data.val_mask].double().mean().item())
        test.append((predicted == data.y)[data.test_mask].double().mean().item())
    return losses, val, test


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_is_the_protocol_to_the_bit(data, dropout, optimizer, weight_decay):
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    slow = network(dropout)
    torch.manual_seed(1)
    expected = direct(slow, data, make(slow.parameters(), lr=0.1, weight_decay=weight_decay), 15)
    fast = network(dropout)
    torch.manual_seed(1)
    history = train(fast, data, optimizer=optimizer, lr=0.1, weight_decay=weight_decay, epochs=15)
    assert (history.loss, history.val_accuracy, history.test_accuracy) == expected
    for a, b in zip(fast.parameters(), slow.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("pause", [1, 9, 15])
def test_goes_on_to_the_bit(data, dropout, optimizer, pause):
    """Stopped anywhere and taken up by another model and optimizer, a run has the numbers of one without a pause."""

    def fresh():
        model = network(dropout)
        make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
        torch.manual_seed(1)
        return model, make(model.parameters(), lr=0.1, weight_decay=0.01)

    whole, stepper = fresh()
    expected = train(whole, data, optimizer=stepper, epochs=15)

    model, stepper = fresh()
    states = {}
    train(
        model,
        data,
        optimizer=stepper,
        epochs=15,
        on_epoch=lambda epoch, history: states.setdefault(epoch, TrainingState.of(model, stepper, history)),
    )
    torch.manual_seed(5)
    model = network(dropout, seed=9)
    stepper = type(stepper)(model.parameters(), lr=0.3)
    went_on = train(model, data, optimizer=stepper, epochs=15, history=states[pause].restore(model, stepper))
    for curve in ("loss", "val_accuracy", "test_accuracy"):
        assert getattr(went_on, curve) == getattr(expected, curve)
    assert went_on.best_state.keys() == expected.best_state.keys()
    assert all(torch.equal(went_on.best_state[name], value) for name, value in expected.best_state.items())
    for a, b in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_run_that_is_over_stays_over(data):
    """A state may be taken after the very epoch that ended the run."""
    model = network()
    stepper = torch.optim.SGD(model.parameters(), lr=0.3)
    history = train(model, data, optimizer=stepper, epochs=500, stop_loss=0.5)
    state = TrainingState.of(model, stepper, history)
    again = train(model, data, optimizer=stepper, epochs=500, stop_loss=0.5, history=state.restore(model, stepper))
    assert (again.outcome, again.epochs, again.loss) == ("converged", history.epochs, history.loss)


def test_patience_ends_a_run_that_gets_no_better(data):
    free = train(network(), data, lr=0.3, epochs=60)
    history = train(network(), data, lr=0.3, epochs=60, patience=10)
    assert history.outcome == "stopped"
    assert history.epochs == history.best_epoch + 10 < 60
    assert history.loss == free.loss[: history.epochs]


def test_a_dead_network_with_dropout_is_not_the_same_in_both_modes(data):
    """Its scores are equal, zero, in both modes, but only as long as it is dead."""
    model = network(dropout=0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not _same_in_both_modes(model, data.x, data)
    assert _same_in_both_modes(network(), data.x, data)


def test_same_seed_same_numbers(data):
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        runs.append(train(network(0.5), data, lr=0.1, epochs=10))
    assert runs[0].loss == runs[1].loss
    torch.manual_seed(8)
    assert train(network(0.5), data, lr=0.1, epochs=10).loss != runs[0].loss


def test_batch_statistics_are_not_disturbed_by_looking(data):
    """Batch norm computes different things in both modes, and finding that out must not count as a step."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack, self.norm = network(), nn.BatchNorm1d(CLASSES)

        def forward(self, x, edge_index):
            return self.norm(self.stack(x, edge_index))

    slow, fast = Normed(), Normed()
    expected = direct(slow, data, torch.optim.SGD(slow.parameters(), lr=0.1), 8)
    history = train(fast, data, lr=0.1, epochs=8)
    assert (history.loss, history.val_accuracy, history.test_accuracy) == expected
    assert torch.equal(slow.norm.running_mean, fast.norm.running_mean)


def test_the_result_is_the_first_best_epoch_and_its_model(data):
    model = network()
    history = train(model, data, lr=0.3, epochs=40)
    best = max(history.val_accuracy)
    assert history.best_epoch == 1 + history.val_accuracy.index(best)
    assert history.best_test_accuracy == history.test_accuracy[history.best_epoch - 1]
    assert history.best_epoch < 40, "the best epoch is the last: the test shows nothing"
    model.load_state_dict(history.best_state)
    predicted = model.eval()(data.x, data.edge_index).argmax(-1)
    assert (predicted == data.y)[data.test_mask].double().mean().item() == history.best_test_accuracy


def test_stops_when_the_loss_is_small_enough(data):
    history = train(network(), data, lr=0.3, epochs=500, stop_loss=0.5)
    assert history.outcome == "converged"
    assert history.loss[-1] <= 0.5 < history.loss[-2]
    assert history.epochs == len(history.loss) < 500


def test_a_loss_that_is_not_finite_ends_the_run(data):
    history = train(network(), data, lr=1e12, epochs=50)
    assert history.outcome == "diverged"
    assert "the loss is" in history.reason
    assert 0 < history.epochs < 50
    data.x[0] = float("nan")
    at_once = train(network(), data, lr=0.1, epochs=5)
    assert (at_once.outcome, at_once.epochs, at_once.best_epoch) == ("diverged", 0, 0)
    assert at_once.to_dict()["best_test_accuracy"] is None


def test_interruption_keeps_what_is_there(data):
    def interrupt(epoch, history):
        if epoch == 4:
            raise KeyboardInterrupt

    history = train(network(), data, lr=0.1, epochs=50, on_epoch=interrupt)
    assert history.outcome == "interrupted"
    assert history.epochs == 4


def test_hooks_see_gradients_before_the_step_and_results_after_it(data):
    model, seen = network(), []

    def on_gradients(epoch, history):
        seen.append(("gradients", epoch, history.epochs, model.convs[0].lin_l.weight.grad is not None))

    train(model, data, lr=0.1, epochs=2, on_gradients=on_gradients, on_epoch=lambda e, h: seen.append((e, h.epochs)))
    assert seen == [("gradients", 1, 0, True), (1, 1), ("gradients", 2, 1, True), (2, 2)]


def test_takes_an_optimizer(data):
    slow, fast = network(), network()
    expected = direct(slow, data, torch.optim.SGD(slow.parameters(), lr=0.1, momentum=0.9), 5)
    history = train(fast, data, optimizer=torch.optim.SGD(fast.parameters(), lr=0.1, momentum=0.9), epochs=5)
    assert history.loss == expected[0]


def test_mistakes_are_named(data):
    model = network()
    with pytest.raises(ChoiceError, match="did you mean 'adam'"):
        train(model, data, optimizer="adm", lr=0.1)
    with pytest.raises(TrainingError, match="needs a rate above 0"):
        train(model, data)
    with pytest.raises(TrainingError, match="has its own rate"):
        train(model, data, optimizer=torch.optim.Adam(model.parameters()), lr=0.1)
    with pytest.raises(TrainingError, match="at least 1"):
        train(model, data, lr=0.1, epochs=0)
    with pytest.raises(TrainingError, match="at least 1 epoch"):
        train(model, data, lr=0.1, patience=0)
    with pytest.raises(TrainingError, match=r"expected a torch\.nn\.Module"):
        train("model", data, lr=0.1)
    data.val_mask = data.val_mask[:, None]
    with pytest.raises(TrainingError, match=r"val_mask has 2 dimensions(.|\n)*choose one split"):
        train(model, data, lr=0.1)
    del data.test_mask
    with pytest.raises(TrainingError, match="no test_mask"):
        train(model, data, lr=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "least", "most"), [("bal-o", 0.77, 1.0), ("xav", 0.0, 0.35)])
def test_ten_layers_on_cora_at_the_rate_of_the_paper(scheme, least, most):
    data = load_dataset("cora", require("cora"))
    model = Stack("gatv2", [1433, *[64] * 9, 7])
    initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
    history = train(model, data, optimizer="sgd", lr=0.05, epochs=1500)
    assert least <= history.best_test_accuracy < most


def test_balance_makes_ten_layers_train_on_cora():
    """A shortened form of the paper's contrast: 120 epochs at a larger rate instead of 5000."""
    data = load_dataset("cora", require("cora"))
    accuracy = {}
    for scheme, epochs in (("xav", 60), ("bal-o", 120)):
        model = Stack("gatv2", [1433, *[64] * 9, 7])
        initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
        accuracy[scheme] = train(model, data, lr=0.1, epochs=epochs).best_test_accuracy
    assert accuracy["bal-o"] > 0.5
    assert accuracy["xav"] < 0.35


def test_numbers_too_small_count_as_zero_while_it_trains(data):
    """Features of 1e-19 have attention gradients of 1e-38; the losses are those of a loop that keeps these."""
    during = []

    def look(epoch, history):
        during.append(are_zero())

    data.x = 1e-19 * data.x
    history = train(network(), data, lr=0.1, epochs=3, on_gradients=look)
    assert during == [True] * 3
    assert not are_zero()
    model = network()
    losses, _, _ = direct(model, data, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    small = sum(int(((p.grad != 0) & (p.grad.abs() < 1.1e-38)).sum()) for p in model.parameters())
    assert small > 0, "nothing is too small: the test shows nothing"
    assert history.loss == losses
