from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT

from equipoise.data.load import load_dataset
from equipoise.errors import ChoiceError, ForwardError, TrainingError
from equipoise.init.schemes import initialize_
from equipoise.kernels.denormals import is_flushing_denormals
from equipoise.nn.fused_convs import fuse_
from equipoise.nn.stack import KINDS, Stack
from equipoise.training.history import TrainingState
from equipoise.training.loop import train
from equipoise.training.sources import select_features
from tests.real_data import require
from tests.training.conftest import CLASSES, FEATURES

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def plain_network(dropout=0.0, seed=0):
    model = Stack("gatv2", [FEATURES, 8, CLASSES], dropout=dropout)
    return initialize_(model, "bal-o", generator=torch.Generator().manual_seed(seed))


class BatchNormNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack, self.norm = plain_network(), nn.BatchNorm1d(CLASSES)

    def forward(self, x, edge_index):
        return self.norm(self.stack(x, edge_index))


def dead_dropout_network():
    """Scores are zero in both modes as long as the weights are zero, although dropout is active."""
    model = Stack("gcn", [FEATURES, 8, CLASSES], dropout=0.5, bias=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


class CountingNetwork(nn.Module):
    """Same scores in both modes, but a buffer counts the training passes."""

    def __init__(self):
        super().__init__()
        self.stack = plain_network()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, edge_index):
        self.count += self.training
        return self.stack(x, edge_index)


class ModeDependentNetwork(nn.Module):
    """Scores depend on the mode, without random numbers or buffers."""

    def __init__(self):
        super().__init__()
        self.stack = plain_network()

    def forward(self, x, edge_index):
        return (1 + self.training) * self.stack(x, edge_index)


NETWORKS = {
    "plain": plain_network,
    "dropout": lambda: plain_network(0.5),
    "batch norm": BatchNormNetwork,
    "dead, dropout": dead_dropout_network,
    "counting": CountingNetwork,
    "mode-dependent": ModeDependentNetwork,
}


def naive_loop(model, data, optimizer, epochs):
    """The protocol without any shortcut: a step in training mode, then an evaluation."""
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
            predictions = model(data.x, data.edge_index).argmax(-1)
        val.append((predictions == data.y)[data.val_mask].double().mean().item())
        test.append((predictions == data.y)[data.test_mask].double().mean().item())
    return losses, val, test


def assert_same_state(model, other):
    for (name, value), expected in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(value, expected), name


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_equals_the_naive_loop_to_the_bit(data, name, optimizer, weight_decay):
    expected_model = NETWORKS[name]()
    expected_optimizer = OPTIMIZERS[optimizer](expected_model.parameters(), lr=0.1, weight_decay=weight_decay)
    torch.manual_seed(1)
    expected = naive_loop(expected_model, data, expected_optimizer, 15)
    expected_rng_state = torch.get_rng_state()

    model = NETWORKS[name]()
    torch.manual_seed(1)
    history = train(model, data, optimizer=optimizer, lr=0.1, weight_decay=weight_decay, epochs=15)
    assert (history.loss, history.val_metric, history.test_metric) == expected
    assert torch.equal(torch.get_rng_state(), expected_rng_state)
    assert_same_state(model, expected_model)


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize(
    ("name", "expected", "training"),
    [
        ("plain", [2, 2, 1, 1, 1], True),
        ("dropout", [2, 2, 2, 2, 2], False),
        ("batch norm", [2, 2, 2, 2, 2], False),
        ("dead, dropout", [2, 2, 2, 2, 2], False),
        ("counting", [2, 2, 2, 2, 2], False),
        ("mode-dependent", [2, 2, 2, 2, 2], False),
    ],
)
def test_calls_of_the_model_per_epoch(data, name, expected, training, start):
    """Two calls until the modes are compared, in the second epoch of a new or resumed run, then one if they agree."""
    model, counts, calls = NETWORKS[name](), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = train(model, data, optimizer=optimizer, epochs=start) if start else None
    handle = model.register_forward_pre_hook(lambda *_: calls.append(model.training))

    def on_epoch(epoch, history):
        counts.append(len(calls))
        calls.clear()

    train(model, data, optimizer=optimizer, epochs=start + 5, history=history, on_epoch=on_epoch)
    handle.remove()
    assert counts == expected
    assert calls == [], "the model is called outside of the epochs"
    assert model.training == training


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("pause", [1, 2, 9, 15])
def test_a_resumed_run_equals_an_uninterrupted_run_to_the_bit(data, name, optimizer, pause):
    """Also with another model and optimizer object, and another random state before it is restored."""

    def build():
        model = NETWORKS[name]()
        torch.manual_seed(1)
        return model, OPTIMIZERS[optimizer](model.parameters(), lr=0.1, weight_decay=0.01)

    expected_model, torch_optimizer = build()
    expected = train(expected_model, data, optimizer=torch_optimizer, epochs=15)

    model, torch_optimizer = build()
    states = {}

    def on_epoch(epoch, history):
        states[epoch] = TrainingState.snapshot(model, torch_optimizer, history)

    train(model, data, optimizer=torch_optimizer, epochs=15, on_epoch=on_epoch)

    model, _ = build()
    torch.manual_seed(5)
    torch_optimizer = OPTIMIZERS[optimizer](model.parameters(), lr=0.3)
    restored = states[pause].restore(model, torch_optimizer)
    resumed = train(model, data, optimizer=torch_optimizer, epochs=15, history=restored)
    for curve in ("loss", "val_metric", "test_metric"):
        assert getattr(resumed, curve) == getattr(expected, curve)
    assert resumed.best_state.keys() == expected.best_state.keys()
    assert all(torch.equal(resumed.best_state[key], value) for key, value in expected.best_state.items())
    assert_same_state(model, expected_model)


def test_resuming_a_converged_run_runs_no_epoch(data):
    """The state may be taken after the epoch that ended the run."""
    model = plain_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    history = train(model, data, optimizer=optimizer, epochs=500, stop_loss=0.5)
    restored = TrainingState.snapshot(model, optimizer, history).restore(model, optimizer)
    resumed = train(model, data, optimizer=optimizer, epochs=500, stop_loss=0.5, history=restored)
    assert (resumed.outcome, resumed.epochs, resumed.loss) == ("converged", history.epochs, history.loss)


def test_state_with_the_earlier_field_names(data):
    model = plain_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    state = TrainingState.snapshot(model, optimizer, train(model, data, optimizer=optimizer, epochs=3))
    old = {
        name.replace("val_metric", "val_accuracy").replace("test_metric", "test_accuracy"): value
        for name, value in state.history.items()
    }
    history = replace(state, history=old).restore(model, optimizer)
    assert history.val_metric == history.val_accuracy == state.history["val_metric"]
    assert (history.test_accuracy, history.best_test_accuracy) == (history.test_metric, history.best_test_metric)


def test_patience_stops_a_run(data):
    unlimited = train(plain_network(), data, lr=0.3, epochs=60)
    history = train(plain_network(), data, lr=0.3, epochs=60, patience=10)
    assert history.outcome == "stopped"
    assert history.epochs == history.best_epoch + 10 < 60
    assert history.loss == unlimited.loss[: history.epochs]


def test_same_seed_same_numbers(data):
    histories = []
    for _ in range(2):
        torch.manual_seed(7)
        histories.append(train(plain_network(0.5), data, lr=0.1, epochs=10))
    assert histories[0].loss == histories[1].loss
    torch.manual_seed(8)
    assert train(plain_network(0.5), data, lr=0.1, epochs=10).loss != histories[0].loss


def test_result_is_the_first_best_epoch_and_its_model(data):
    model = plain_network()
    history = train(model, data, lr=0.3, epochs=40)
    best = max(history.val_metric)
    assert history.best_epoch == 1 + history.val_metric.index(best)
    assert history.best_test_metric == history.test_metric[history.best_epoch - 1]
    assert history.best_epoch < 40, "the best epoch is the last: the test would pass trivially"
    model.load_state_dict(history.best_state)
    predictions = model.eval()(data.x, data.edge_index).argmax(-1)
    assert (predictions == data.y)[data.test_mask].double().mean().item() == history.best_test_metric


def test_stops_at_stop_loss(data):
    history = train(plain_network(), data, lr=0.3, epochs=500, stop_loss=0.5)
    assert history.outcome == "converged"
    assert history.loss[-1] <= 0.5 < history.loss[-2]
    assert history.epochs == len(history.loss) < 500


def test_non_finite_loss_ends_the_run(data):
    history = train(plain_network(), data, lr=1e12, epochs=50)
    assert history.outcome == "diverged"
    assert "the loss is" in history.reason
    assert 0 < history.epochs < 50
    data.x[0] = float("nan")
    history = train(plain_network(), data, lr=0.1, epochs=5)
    assert (history.outcome, history.epochs, history.best_epoch) == ("diverged", 0, 0)
    assert history.to_dict()["best_test_metric"] is None


def test_interruption_keeps_the_history(data):
    def interrupt(epoch, history):
        if epoch == 4:
            raise KeyboardInterrupt

    history = train(plain_network(), data, lr=0.1, epochs=50, on_epoch=interrupt)
    assert history.outcome == "interrupted"
    assert history.epochs == 4


def test_callbacks_run_before_the_step_and_after_the_evaluation(data):
    model, events = plain_network(), []

    def on_gradients(epoch, history):
        events.append(("gradients", epoch, history.epochs, model.convs[0].lin_l.weight.grad is not None))

    train(model, data, lr=0.1, epochs=2, on_gradients=on_gradients, on_epoch=lambda e, h: events.append((e, h.epochs)))
    assert events == [("gradients", 1, 0, True), (1, 1), ("gradients", 2, 1, True), (2, 2)]


def test_accepts_a_torch_optimizer(data):
    expected_model, model = plain_network(), plain_network()
    momentum_sgd = torch.optim.SGD(expected_model.parameters(), lr=0.1, momentum=0.9)
    expected = naive_loop(expected_model, data, momentum_sgd, 5)
    history = train(model, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), epochs=5)
    assert history.loss == expected[0]


def test_invalid_arguments(data):
    model = plain_network()
    with pytest.raises(ChoiceError, match="did you mean 'adam'"):
        train(model, data, optimizer="adm", lr=0.1)
    with pytest.raises(TrainingError, match="needs a finite learning rate above 0"):
        train(model, data)
    with pytest.raises(TrainingError, match="only to an optimizer given by name"):
        train(model, data, optimizer=torch.optim.Adam(model.parameters()), lr=0.1)
    with pytest.raises(TrainingError, match="at least 1"):
        train(model, data, lr=0.1, epochs=0)
    with pytest.raises(TrainingError, match="at least 1 epoch"):
        train(model, data, lr=0.1, patience=0)
    with pytest.raises(TrainingError, match=r"expected a torch\.nn\.Module"):
        train("model", data, lr=0.1)
    history = train(model, data, lr=0.1, epochs=1)
    with pytest.raises(TrainingError, match="the history has the metric 'accuracy', and the run 'roc_auc'"):
        train(model, data, lr=0.1, epochs=2, history=history, metric="roc_auc")
    data.val_mask = data.val_mask[:, None]
    with pytest.raises(TrainingError, match=r"val_mask has 2 dimensions(.|\n)*choose one split"):
        train(model, data, lr=0.1)
    del data.test_mask
    with pytest.raises(TrainingError, match="no test_mask"):
        train(model, data, lr=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (lambda data: {"train_mask": torch.arange(len(data.y))}, "train_mask is int64.* other than 0 and 1"),
        (lambda data: {"val_mask": torch.full((len(data.y),), torch.nan)}, "val_mask is float32"),
        (lambda data: {"x": data.x.numpy()}, "data.x is a ndarray"),
        (lambda data: {"edge_index": data.edge_index.tolist()}, "data.edge_index is a list"),
        (lambda data: {"y": data.y.tolist()}, "data.y is a list"),
        (lambda data: {"y": torch.tensor(1)}, "data.y has no dimension"),
        (lambda data: {"y": data.y.to(torch.complex64)}, "the targets are complex"),
        (lambda data: {"x": torch.cat([data.x, data.x])}, "targets need as many rows of scores"),
    ],
)
def test_malformed_graphs_are_named(data, changes, message):
    for name, value in changes(data).items():
        data[name] = value
    with pytest.raises(TrainingError, match=message):
        train(plain_network(), data, lr=0.1, epochs=1)


def test_masks_of_integers_are_masks(data):
    expected = train(plain_network(), data.clone(), lr=0.1, epochs=2).loss
    data.train_mask = data.train_mask.long()
    assert train(plain_network(), data, lr=0.1, epochs=2).loss == expected


@pytest.mark.parametrize(
    ("forward", "error", "message"),
    [
        (lambda lin, x: {}["scores"], ForwardError, "failed: KeyError: 'scores'"),
        (lambda lin, x: lin(x).sum(), TrainingError, "as many rows of scores"),
        (lambda lin, x: lin(x).detach(), TrainingError, "does not depend on trainable parameters"),
    ],
)
def test_malformed_models_are_named(data, forward, error, message):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(data.num_features, CLASSES)

        def forward(self, x, edge_index):
            assert edge_index.dim() == 2
            return forward(self.lin, x)

    with pytest.raises(error, match=message):
        train(Network(), data, lr=0.1, epochs=1)


def test_frozen_models_and_failing_metrics_are_named(data):
    def metric(scores, targets):
        raise KeyError("nothing")

    with pytest.raises(TrainingError, match=r"failed: KeyError: 'nothing'"):
        train(plain_network(), data, lr=0.1, epochs=1, metric=metric)
    with pytest.raises(TrainingError, match="does not depend on trainable parameters"):
        train(plain_network().requires_grad_(False), data, lr=0.1, epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "at_least", "below"), [("bal-o", 0.77, 1.0), ("xav", 0.0, 0.35)])
def test_ten_layers_on_cora_at_the_paper_learning_rate(scheme, at_least, below):
    data = load_dataset("cora", require("cora"))
    model = Stack("gatv2", [1433, *[64] * 9, 7])
    initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
    history = train(model, data, optimizer="sgd", lr=0.05, epochs=1500)
    assert at_least <= history.best_test_metric < below


def test_balanced_initialisation_trains_ten_layers_on_cora():
    """A short form of the paper's comparison: 120 epochs at a larger learning rate instead of 5000."""
    data = load_dataset("cora", require("cora"))
    accuracy = {}
    for scheme, epochs in (("xav", 60), ("bal-o", 120)):
        model = Stack("gatv2", [1433, *[64] * 9, 7])
        initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
        accuracy[scheme] = train(model, data, lr=0.1, epochs=epochs).best_test_metric
    assert accuracy["bal-o"] > 0.5
    assert accuracy["xav"] < 0.35


def test_denormals_are_flushed_during_training_only(data):
    """Features of 1e-19 give attention gradients of 1e-38; the losses equal those of a loop that keeps denormals."""
    flushed = []
    data.x = 1e-19 * data.x
    history = train(
        plain_network(), data, lr=0.1, epochs=3, on_gradients=lambda *_: flushed.append(is_flushing_denormals())
    )
    assert flushed == [True] * 3
    assert not is_flushing_denormals()
    model = plain_network()
    losses, _, _ = naive_loop(model, data, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    denormals = sum(int(((p.grad != 0) & (p.grad.abs() < 1.1e-38)).sum()) for p in model.parameters())
    assert denormals > 0, "no denormals: the test would pass trivially"
    assert history.loss == losses


def bag_of_words(density=0.05):
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(60, 50, generator=generator) < density).float()
    return Data(x=x, edge_index=torch.randint(0, 60, (2, 200), generator=generator))


def test_sparse_features_by_default_for_stacks_with_sparse_input_only():
    data = bag_of_words()
    stack, pyg_model = Stack("gatv2", [50, 8, 3]), GAT(50, 8, 2, 3)
    sparse = select_features(stack, data.x)
    assert sparse.layout == torch.sparse_csr
    assert torch.equal(sparse.to_dense(), data.x)
    dense = bag_of_words(density=0.5).x
    assert select_features(stack, dense) is dense
    assert select_features(pyg_model, data.x) is data.x
    assert select_features(stack, data.x.long()).layout == torch.strided
    assert select_features(stack, sparse) is sparse


def test_sparse_features_can_be_forced_and_forbidden():
    data = bag_of_words()
    stack, fused_model = Stack("gatv2", [50, 8, 3]), fuse_(GAT(50, 8, 2, 3))
    assert select_features(stack, data.x, sparse=False) is data.x
    assert select_features(fused_model, data.x, sparse=True).layout == torch.sparse_csr
    assert select_features(stack, bag_of_words(0.5).x, sparse=True).layout == torch.sparse_csr
    x = data.x.to_sparse_csr()
    assert select_features(stack, x, sparse=False) is x


@pytest.mark.parametrize("sparse", [None, True, False])
def test_train_passes_features_in_the_requested_layout(sparse):
    data, layouts = bag_of_words(), []
    data.y = torch.arange(60) % 3
    data.train_mask = data.val_mask = data.test_mask = torch.ones(60, dtype=torch.bool)
    model = Stack("gcn", [50, 8, 3])
    model.register_forward_pre_hook(lambda _, inputs: layouts.append(inputs[0].layout))
    train(model, data, lr=0.1, epochs=1, sparse_features=sparse)
    assert set(layouts) == {torch.strided if sparse is False else torch.sparse_csr}


@pytest.mark.parametrize("options", [{}, {"skip": "linear"}, {"dropout": 0.5, "input_dropout": 0.5}, {"bias": True}])
@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_stack_supports_sparse_features(kind, options, hooked):
    """The default of sparse_features relies on it; hooks make a stack fall back to layer-by-layer execution."""
    data = bag_of_words()
    model = Stack(kind, [50, 8, 8, 3], **options)
    if hooked:
        for conv in model.convs:
            conv.register_forward_hook(lambda *_: None)
    model(select_features(model, data.x), data.edge_index).sum().backward()  # dropout acts in training mode only
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    model.eval()
    expected = model(data.x, data.edge_index)
    torch.testing.assert_close(model(select_features(model, data.x), data.edge_index), expected)
