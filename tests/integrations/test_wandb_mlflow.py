import sys

import pytest
import torch
from torch import nn

from equipoise.errors import EquipoiseError
from equipoise.integrations.mlflow import MLflow
from equipoise.integrations.wandb import WeightsAndBiases
from equipoise.training.recorder import Recorder


def train_with(sink):
    """Three recorded steps of a small network; returns the recorder."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, every=1, optimizer=optimizer)
    with sink(recorder):
        for epoch in range(1, 4):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 3)).square().mean()
            loss.backward()
            recorder.step(epoch, loss=loss.item())
            optimizer.step()
    assert recorder.listeners == []
    return recorder


def loss_of(recorder):
    frame = recorder.frame()
    return frame[frame.quantity == "train/loss"].value.tolist()


class Run:
    def __init__(self):
        self.logged = []

    def log(self, values, step):
        self.logged.append((step, values))


def test_weights_and_biases_gets_one_value_per_chart_and_epoch():
    run = Run()
    recorder = train_with(lambda recorder: WeightsAndBiases(run, recorder))
    assert [step for step, _ in run.logged] == [1, 2, 3]
    assert [values["train/loss"] for _, values in run.logged] == loss_of(recorder)
    assert "gradient/layer01/features" in run.logged[0][1]
    with pytest.raises(EquipoiseError, match="expected a Weights & Biases run, got str"):
        WeightsAndBiases("run", recorder)


def test_sinks_listen_to_recorders_only():
    run = type("Run", (), {"log": lambda *_: None})()
    for sink in (lambda: WeightsAndBiases(run, "rec"), lambda: WeightsAndBiases(run, None)):
        with pytest.raises(EquipoiseError, match="expected a recorder"):
            sink()


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path) as run:
        train_with(lambda recorder: WeightsAndBiases(run, recorder))
        assert run.step == 3
    assert list(tmp_path.rglob("*.wandb"))


def test_mlflow_in_a_local_folder(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = (tmp_path / "mlruns").as_uri()
    mlflow.set_tracking_uri(folder)
    with mlflow.start_run() as run:
        recorder = train_with(MLflow)
    history = mlflow.MlflowClient(folder).get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == list(enumerate(loss_of(recorder), start=1))


def test_missing_mlflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(EquipoiseError, match=r"equipoise\[mlflow\]"):
        MLflow(Recorder(nn.Linear(2, 2)))
