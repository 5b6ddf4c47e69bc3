from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.data.catalog import CATALOG
from equipoise.data.load import load_dataset
from equipoise.experiments.checkpoint import Checkpoint
from equipoise.experiments.recording_plan import RecordingPlan
from equipoise.experiments.result import CURVES, describe_machine, library_versions
from equipoise.experiments.run import run
from equipoise.init.schemes import initialize_
from equipoise.nn.stack import Stack
from equipoise.training.loop import train
from tests.experiments.workloads import equal_results, spec


def test_run_follows_the_training_protocol():
    result = run(spec(depth=3, init="bal-o", seed=3, dropout=0.3, optimizer="adam", lr=0.01, weight_decay=0.01))
    data = load_dataset("synthetic-citation")
    model = Stack("gatv2", [data.num_features, 8, 8, data.classes], dropout=0.3)
    initialize_(model, "bal-o", generator=torch.Generator().manual_seed(3))
    torch.manual_seed(3)
    history = train(model, data, optimizer="adam", lr=0.01, weight_decay=0.01, epochs=6)
    assert result.outcome == "finished"
    assert (result.test_accuracy, result.val_accuracy) == (history.best_test_metric, history.best_val_metric)
    assert (result.best_epoch, result.epochs) == (history.best_epoch, 6)
    for name in CURVES:
        assert np.array_equal(result.curves[name], np.float32(getattr(history, name)))
    assert (result.versions, result.machine) == (library_versions(), describe_machine())
    assert result.seconds > 0
    assert result.when.endswith("+00:00")


def test_run_has_the_metric_of_its_data_set(monkeypatch):
    pytest.importorskip("torchmetrics")
    accuracy = run(spec(epochs=3))
    info = CATALOG["synthetic-citation"]
    monkeypatch.setitem(CATALOG, "synthetic-citation", replace(info, metric="roc_auc"))
    auc = run(spec(epochs=3))
    assert auc.outcome == "finished"
    assert auc.key == accuracy.key
    assert np.array_equal(auc.curves["loss"], accuracy.curves["loss"])
    assert not np.array_equal(auc.curves["test_accuracy"], accuracy.curves["test_accuracy"])
    model, data = Stack("gatv2", [500, 8, 7]), load_dataset("synthetic-citation")
    initialize_(model, spec().init, generator=torch.Generator().manual_seed(spec().seed))
    history = train(model, data, lr=spec().lr, epochs=3, metric="roc_auc")
    assert auc.test_accuracy == history.best_test_accuracy


def test_run_is_reproducible_and_restores_the_global_generator():
    one = spec(dropout=0.5, seed=1)
    state = torch.get_rng_state()
    first = run(one)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert equal_results(first, run(one))
    assert not np.array_equal(run(spec(dropout=0.5, seed=2)).curves["loss"], first.curves["loss"])


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "gat", "heads": 2, "out_heads": 3, "input_dropout": 0.5, "activation": "elu"},
        {"kind": "gcn", "skip": "linear", "bias": True},
        {"kind": "omega-gat", "share_weights": False},
        {"kind": "lipschitz-gat", "heads": 2, "concat": False, "attention_dropout": 0.2},
        {"beta": 1.0},
        {"calibrate": True},
    ],
)
def test_settings_reach_the_network(settings):
    default, other = run(spec(epochs=3, init="bal-x")), run(spec(epochs=3, init="bal-x", **settings))
    assert other.outcome == "finished"
    assert not np.array_equal(default.curves["loss"], other.curves["loss"])


def test_early_stopping():
    assert run(spec(epochs=400, stop_loss=1.9)).outcome == "converged"
    stopped = run(spec(epochs=400, patience=5))
    assert stopped.outcome == "stopped"
    assert stopped.epochs == stopped.best_epoch + 5


def test_diverged_run_has_a_reason():
    result = run(spec(lr=1e12, epochs=40))
    assert result.outcome == "diverged"
    assert "the loss is" in result.reason
    assert len(result.curves["loss"]) == result.epochs < 40


def test_error_gives_a_failed_result():
    result = run(spec(width=7, init="bal-o"))
    assert result.outcome == "failed"
    assert result.reason.startswith("ArchitectureError: bal-o pairs each hidden neuron with its mirror image")
    assert result.traceback.startswith("Traceback")
    assert "ArchitectureError" in result.traceback
    assert (result.epochs, result.test_accuracy, result.best_epoch) == (0, None, None)


@pytest.mark.parametrize("settings", [{}, {"dropout": 0.4, "optimizer": "adam", "lr": 0.01}, {"kind": "gcn"}])
def test_recording_does_not_change_the_numbers(settings):
    one = spec(depth=4, init="bal-x", epochs=12, **settings)
    plan = RecordingPlan(3, ("balance", "change", "gradient", "representation", "update"))
    recorded = run(one, recording_plan=plan)
    assert equal_results(recorded, run(one))
    frame = recorded.recording.unpack().frame()
    losses = frame[frame.quantity == "train/loss"]
    assert losses.epoch.tolist() == [1, 5, 10], "at most 12 / 3 samples besides the first"
    assert np.array_equal(np.float32(losses.value), recorded.curves["loss"][[0, 4, 9]])
    assert frame[frame.quantity == "balance/c"].layer.nunique() == 3


def test_recorded_run_ignores_its_checkpoint(tmp_path):
    one = spec(epochs=10)
    checkpoint = Checkpoint(tmp_path / "one.pt", one.key, interval=0.0)
    run(one, checkpoint)
    assert checkpoint.load() is not None
    recorded = run(one, checkpoint, RecordingPlan(1, ("gradient",)))
    assert recorded.recording.unpack().frame().epoch.nunique() == 10
