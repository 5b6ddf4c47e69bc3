import pytest
import torch
from torch import nn

from equipoise.errors import EquipoiseError
from equipoise.integrations import lightning as integration
from equipoise.laws.discover import discover
from equipoise.training.rebalancer import Rebalancer
from equipoise.training.recorder import Recorder


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_missing_lightning(monkeypatch):
    monkeypatch.setattr(integration, "Callback", object)
    with pytest.raises(EquipoiseError, match=r"Lightning is not installed(.|\n)*pip install"):
        integration.RecorderCallback(Recorder(mlp()))
    with pytest.raises(EquipoiseError, match=r"Lightning is not installed(.|\n)*rebalancer.step"):
        integration.RebalancerCallback(Rebalancer([]))


def test_callbacks_name_wrong_arguments(monkeypatch):
    monkeypatch.setattr(integration, "Callback", nn.Module)  # as if Lightning were installed
    with pytest.raises(EquipoiseError, match="expected a rebalancer, got list"):
        integration.RebalancerCallback([])
    with pytest.raises(EquipoiseError, match="expected a recorder, got Sequential"):
        integration.RecorderCallback(mlp())


def build_module(L, optimizer_type=torch.optim.SGD):
    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = mlp()

        def training_step(self, batch, _):
            loss = self.model(batch).square().mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            return optimizer_type(self.parameters(), lr=0.1)

    return Module()


def fit(L, module, *callbacks):
    trainer = L.Trainer(
        max_epochs=3,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(4, 3), batch_size=2))


def test_records_due_steps_of_a_trainer_and_removes_its_hooks():
    L = pytest.importorskip("lightning")
    module = build_module(L)
    record = Recorder(module.model, every=2)
    fit(L, module, integration.RecorderCallback(record))
    frame = record.frame()
    assert sorted(frame.epoch.unique()) == [1, 2, 4, 6]  # two batches per epoch
    updates = frame[frame.quantity == "update/size"]
    assert len(updates) == 8
    assert (updates.value > 0).all()
    assert not module.model[0]._forward_hooks
    assert "train/train_loss" in set(frame.quantity)


def test_rebalances_due_steps_of_a_trainer_with_its_optimizer():
    L = pytest.importorskip("lightning")
    module = build_module(L, torch.optim.Adam)
    laws = discover(module.model, torch.randn(4, 3))
    rebalancer = Rebalancer(laws, every=3)
    record = Recorder(module.model, laws, every=1)
    fit(L, module, integration.RebalancerCallback(rebalancer), integration.RecorderCallback(record))
    assert rebalancer.steps == 6
    assert isinstance(rebalancer._optimizer, torch.optim.Adam)
    frame = record.frame()
    c = frame[frame.quantity == "balance/c"].groupby("epoch").value.apply(lambda values: values.abs().max())
    assert c[[3, 6]].max() < 1e-6
    assert c[[2, 4, 5]].min() > 1e-3
