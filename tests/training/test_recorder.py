import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GATv2Conv, TransformerConv

from equipoise.data.load import load_dataset
from equipoise.errors import ChoiceError, LawError, TrainingError
from equipoise.init.schemes import initialize_
from equipoise.laws.discover import discover
from equipoise.nn import stack as stack_module
from equipoise.nn.stack import Stack
from equipoise.training import recorder as recorder_module
from equipoise.training.loop import train
from equipoise.training.quantities import relative_gradient_norm, smoothness
from equipoise.training.recorder import GROUPS, Recorder
from equipoise.training.recording import Recording
from tests.networks import Chain, graph
from tests.real_data import require

LR = 0.2


@pytest.fixture(scope="module")
def data():
    return load_dataset("synthetic-citation")


@pytest.fixture
def model(data):
    stack = Stack("gatv2", [data.num_features, 8, 8, data.classes])
    return initialize_(stack, "xav", generator=torch.Generator().manual_seed(0))


@pytest.fixture
def laws(model, data):
    return discover(model, torch.rand(12, data.num_features), torch.randint(0, 12, (2, 40)))


def training_loop(model, data, record, epochs, optimizer):
    """A plain PyTorch training loop with a recorder."""
    for epoch in range(1, epochs + 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
        loss.backward()
        record.step(epoch, loss=loss.item())
        optimizer.step()


def value(frame, epoch, quantity, layer):
    (number,) = frame[(frame.epoch == epoch) & (frame.quantity == quantity) & (frame.layer == layer)].value
    return number


def test_records_the_first_epoch_and_every_few(model, data, laws):
    record = Recorder(model, laws, every=4, quantities=GROUPS)
    train(model, data, lr=LR, epochs=9, record=record)
    frame = record.frame()
    assert sorted(frame[~frame.quantity.str.startswith("best/")].epoch.unique()) == [1, 4, 8]
    groups = {quantity.split("/")[0] for quantity in frame.quantity}
    assert groups == {*GROUPS, "train", "best"}
    assert set(frame[frame.quantity == "balance/c"].layer) == {1, 2}
    assert len(frame[(frame.quantity == "balance/drift") & (frame.epoch == 4)]) == 16


def test_quantities_before_and_after_the_step(model, data, laws):
    """Gradients and c before the step, update and drift after it, against values computed in callbacks."""
    record, expected = Recorder(model, laws, every=2), {}
    initial_attention = model.convs[1].att.detach().clone()

    def on_gradients(epoch, history):
        if epoch == 4:
            layer = model.convs[1]
            expected["gradient"] = relative_gradient_norm([layer.lin_l.weight])
            expected["c"] = laws[1].imbalance().double().numpy()
            expected["before"] = [p.detach().double() for p in (layer.lin_l.weight, layer.att)]
            expected["predicted"] = laws[1].predicted_drift(LR).double().numpy()
            expected["change"] = (layer.att.detach() - initial_attention).abs().mean().item()

    def on_epoch(epoch, history):
        if epoch == 4:
            layer = model.convs[1]
            after = [p.detach().double() for p in (layer.lin_l.weight, layer.att)]
            steps = sum((new - old).square().sum() for new, old in zip(after, expected["before"], strict=True))
            expected["update"] = math.sqrt(steps / sum(old.square().sum() for old in expected["before"]))
            expected["drift"] = laws[1].imbalance().double().numpy() - expected["c"]

    train(model, data, lr=LR, epochs=5, record=record, on_gradients=on_gradients, on_epoch=on_epoch)
    frame = record.frame()
    assert value(frame, 4, "gradient/features", 2) == pytest.approx(expected["gradient"])
    assert value(frame, 4, "change/attention", 2) == pytest.approx(expected["change"])
    assert value(frame, 4, "update/size", 2) == pytest.approx(expected["update"], rel=1e-4)
    rows = frame[(frame.epoch == 4) & (frame.layer == 2)]
    for quantity in ("c", "drift"):
        values = rows[rows.quantity == f"balance/{quantity}"].value
        np.testing.assert_allclose(values, expected[quantity], atol=1e-6)
    np.testing.assert_allclose(rows[rows.quantity == "balance/predicted_drift"].value, expected["predicted"], atol=1e-7)


def test_own_training_loop_records_the_same_as_train(model, data, laws):
    first = Recorder(model, laws, every=3)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(model, data, lr=LR, epochs=7, record=first)
    model.load_state_dict(state)
    with Recorder(model, laws, every=3) as second:  # without an optimizer
        training_loop(model, data, second, 7, torch.optim.SGD(model.parameters(), lr=LR))
    frame = first.frame()
    frame = frame[~frame.quantity.str.startswith("best/") & (frame.quantity != "balance/predicted_drift")]
    keys = ["epoch", "quantity", "layer", "neuron"]
    expected = second.frame().sort_values(keys).value.to_numpy()
    # Up to rounding: train passes sparse features.
    np.testing.assert_allclose(frame.sort_values(keys).value.to_numpy(), expected, rtol=1e-3, atol=1e-5)


def test_recording_does_not_change_the_run(model, data, laws):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = train(model, data, lr=LR, epochs=6)
    model.load_state_dict(state)
    record = Recorder(model, laws, every=1)
    recorded = train(model, data, lr=LR, epochs=6, record=record)
    assert recorded.loss == expected.loss
    assert all(not module._forward_hooks for module in model.modules())


def test_drift_is_predicted_under_gradient_descent_only(model, data, laws):
    model.double()
    double_data = data.clone()
    double_data.x = double_data.x.double()
    record = Recorder(model, laws, every=1, quantities=("balance",))
    train(model, double_data, lr=LR, weight_decay=0.01, epochs=4, record=record)
    frame = record.frame()
    drift, predicted = (frame[frame.quantity == f"balance/{q}"].value.to_numpy() for q in ("drift", "predicted_drift"))
    assert np.abs(predicted).max() > 1e-6
    np.testing.assert_allclose(drift, predicted, atol=1e-13)
    delta = frame[frame.quantity == "balance/delta"].value.abs().max()
    assert delta < 1e-12 * frame[frame.quantity == "balance/terms"].value.max()
    record = Recorder(model, laws, every=1, quantities=("balance",))
    train(model, double_data, optimizer="adam", lr=0.01, epochs=2, record=record)
    assert "balance/predicted_drift" not in set(record.frame().quantity)


def test_smoothness_of_representations():
    """A small graph is sampled completely, so the value is that of the whole graph."""
    x, edge_index = graph()
    small = Stack("gatv2", [6, 4, 3])
    record = Recorder(small, (), every=1, quantities=("representation", "attention"))
    output = small(x, edge_index)
    output.sum().backward()
    record.step(1)
    record.close()
    without_self_loops = edge_index[:, edge_index[0] != edge_index[1]]
    expected = smoothness(output, without_self_loops).mad
    assert value(record.frame(), 1, "representation/mad", 2) == pytest.approx(expected, rel=1e-5)
    assert 0 < value(record.frame(), 1, "attention/entropy", 1) <= 1


@pytest.mark.parametrize("heads", [1, 2])
def test_captured_attention_equals_recomputed_attention(data, heads, monkeypatch):
    stack = Stack("gatv2", [data.num_features, 8, 8, data.classes], heads=heads)
    entropies = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(stack_module, "can_fuse", lambda *_: False)
        with Recorder(stack, every=1, quantities=("attention", "representation")) as record:
            stack(300 * data.x, data.edge_index).sum().backward()  # large scores: attention is selective
            record.step(1)
        entropies.append(record.frame().set_index(["quantity", "layer"]).value)
    assert len(entropies[0]) == 9
    np.testing.assert_allclose(*entropies, rtol=1e-4)
    assert entropies[0]["attention/entropy"].max() < 1 - 1e-4, "attention is uniform: the test would pass trivially"


def test_attention_of_a_subclass_comes_from_its_own_forward(data):
    """On a graph larger than the sample."""

    class Subclass(GATv2Conv):
        pass

    entropies, x = [], 300 * data.x
    first = Chain(GATv2Conv(data.num_features, 4, heads=2), GATv2Conv(8, 3))
    for model in (first, Chain(Subclass(data.num_features, 4, heads=2), Subclass(8, 3))):
        model.load_state_dict(first.state_dict())
        with Recorder(model, every=1, quantities=("attention",)) as record:
            model(x, data.edge_index).sum().backward()
            record.step(1)
        entropies.append(record.frame().value)
    assert len(entropies[0]) == 2
    assert entropies[0].min() < 0.99
    np.testing.assert_allclose(*entropies, rtol=1e-5)


def test_entropy_of_zero_attention_is_one(data):
    model = initialize_(Stack("gatv2", [data.num_features, 8, 8, data.classes]), "bal-o")
    record = Recorder(model, quantities=("attention",))
    train(model, data, lr=1e-12, epochs=1, record=record)
    frame = record.frame()
    assert frame[frame.quantity == "attention/entropy"].value.tolist() == pytest.approx([1.0] * 3)


def test_change_is_relative_to_initialisation(model, data):
    record = Recorder(model, every=1, quantities=("change",))
    train(model, data, lr=LR, epochs=3, record=record)
    frame = record.frame()
    assert value(frame, 1, "change/unchanged_features", 1) == 1.0
    assert value(frame, 3, "change/features", 3) > value(frame, 2, "change/features", 3) > 0
    best = frame[frame.quantity == "best/features_unchanged"]
    assert len(best) == 3
    assert best.value.max() < 1


def test_records_sparse_features_and_other_layers():
    x, edge_index = graph()
    model = Chain(TransformerConv(6, 4), TransformerConv(4, 3))
    with Recorder(model, discover(model, x, edge_index), every=1) as record:
        model(x, edge_index).sum().backward()
        record.step(1)
    frame = record.frame()
    assert {"gradient/features", "balance/c", "representation/mad"} <= set(frame.quantity)
    c = frame[(frame.quantity == "balance/c") & (frame.layer == 1)]
    assert c.neuron.is_unique, "laws of one layer share a neuron number"
    stack = Stack("gatv2", [6, 4, 3])
    with Recorder(stack, every=1, quantities=("attention",)) as record:
        stack(x.to_sparse_csr(), edge_index).sum().backward()
        record.step(1)
    assert len(record.frame()) == 2


def test_networks_without_a_graph():
    mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with Recorder(mlp, discover(mlp, torch.randn(5, 3)), every=1) as record:
        mlp(torch.randn(5, 3)).sum().backward()
        record.step(1)
    assert {"gradient/features", "balance/delta", "change/moved"} <= set(record.frame().quantity)
    assert record.recording.layers == ("0", "2")


def test_memory_is_bounded(model, data, laws, monkeypatch):
    monkeypatch.setattr(recorder_module, "MAX_BYTES", 60_000)
    record = Recorder(model, laws, every=1)
    train(model, data, lr=LR, epochs=40, record=record)
    assert record.every > 1
    assert record.recording.nbytes < 60_000
    weights = sum(p.nbytes for p in model.parameters())
    assert record.nbytes == record.recording.nbytes + 2 * weights
    epochs = sorted(record.frame().epoch.unique())
    assert epochs[0] == 1
    assert len(epochs) > 2


@pytest.mark.parametrize(("epochs", "expected"), [(6, [1, 2, 3, 4, 5, 6]), (30, [1, 5, 10, 15, 20, 25, 30])])
def test_most_covers_a_run_of_any_length_evenly(model, data, laws, epochs, expected):
    record, notifications = Recorder(model, laws, every=1, most=6), []
    record.listeners.append(lambda epoch, records: notifications.append({r.quantity for r in records}))
    train(model, data, lr=LR, epochs=epochs, record=record)
    frame = record.frame()
    updates = frame[frame.quantity == "update/size"]
    assert sorted(updates.epoch.unique()) == expected
    assert sorted(frame[frame.quantity == "gradient/features"].epoch.unique()) == expected, (
        "some records are incomplete"
    )
    assert all("gradient/features" in quantities and "balance/drift" in quantities for quantities in notifications)


def test_save_and_load(model, data, laws, tmp_path):
    record = Recorder(model, laws, every=2)
    train(model, data, lr=LR, epochs=3, record=record)
    loaded = Recording.load(record.save(tmp_path / "run.npz")).frame()
    assert loaded.equals(record.frame())


def test_listeners_are_called_with_complete_records(model, data, laws):
    record, notifications = Recorder(model, laws, every=2), []
    record.listeners.append(lambda epoch, records: notifications.append((epoch, {r.quantity for r in records})))
    train(model, data, lr=LR, epochs=4, record=record)
    assert [epoch for epoch, _ in notifications] == [1, 2, 4]
    assert all({"update/size", "balance/drift", "train/loss"} <= quantities for _, quantities in notifications)


def test_invalid_arguments(model, data, laws):
    with pytest.raises(ChoiceError, match="did you mean 'gradient'"):
        Recorder(model, laws, quantities=("gradients",))
    with pytest.raises(TrainingError, match="at least 1 epoch"):
        Recorder(model, laws, every=0)
    with pytest.raises(TrainingError, match="at least 1 record"):
        Recorder(model, laws, most=0)
    other = Stack("gatv2", [data.num_features, 8, 8, data.classes])
    with pytest.raises(LawError, match=r"belongs to another model(.|\n)*law.bind"):
        Recorder(other, laws)
    with pytest.raises(LawError, match="expected a list of laws"):
        Recorder(model, laws[0])


@pytest.mark.slow
def test_conservation_and_gradients_of_ten_layers_on_cora():
    """δ is rounding error; c drifts as predicted, to 1e-5; first-layer gradients distinguish the schemes."""
    cora = load_dataset("cora", require("cora"))
    first_layer_gradient = {}
    for scheme in ("xav", "bal-o"):
        model = Stack("gatv2", [1433, *[64] * 9, 7])
        initialize_(model, scheme, generator=torch.Generator().manual_seed(0))
        laws = discover(model, torch.rand(24, 1433), torch.randint(0, 24, (2, 72)))
        record = Recorder(model, laws, every=1, quantities=("gradient", "balance"))
        train(model, cora, lr=0.05, epochs=25, record=record)
        frame = record.frame()
        first_layer_gradient[scheme] = value(frame, 25, "gradient/features", 1)
        delta, terms = (frame[frame.quantity == f"balance/{q}"] for q in ("delta", "terms"))
        residual = delta.value.abs().groupby([delta.epoch, delta.layer]).max()
        assert (residual < 1e-5 * terms.set_index(["epoch", "layer"]).value).all()
        rows = {q: frame[frame.quantity == f"balance/{q}"] for q in ("c", "drift", "predicted_drift")}
        keys = ["epoch", "layer", "neuron"]
        c, drift, predicted = (rows[q].set_index(keys).value for q in rows)
        unexplained = (drift - predicted).groupby(["layer", "neuron"]).sum().abs().max()
        assert unexplained < 1e-5
        assert c.abs().max() < (1e-4 if scheme == "bal-o" else 2)
    assert first_layer_gradient["bal-o"] > 50 * first_layer_gradient["xav"]


def test_intervals_are_integers_and_one_group_may_stand_alone():
    model = Stack("gatv2", [3, 4, 2])
    for settings in ({"every": 0}, {"every": 2.5}, {"every": "5"}, {"most": 0}, {"most": 1.5}):
        with pytest.raises(TrainingError, match="must be an integer of at least 1"):
            Recorder(model, **settings)
    assert Recorder(model, quantities="gradient").quantities == ("gradient",)


def test_wrong_optimizers_and_epochs_are_named():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    with pytest.raises(TrainingError, match=r"expected a torch\.optim\.Optimizer, got str"):
        Recorder(model, optimizer="adam")
    other = torch.optim.SGD(torch.nn.Linear(3, 4).parameters(), lr=0.1)
    with pytest.raises(TrainingError, match="no parameter of this model"):
        Recorder(model, optimizer=other)
    for epoch in ("1", 1.5, None):
        with pytest.raises(TrainingError, match="epoch must be an integer"):
            Recorder(model).step(epoch)
