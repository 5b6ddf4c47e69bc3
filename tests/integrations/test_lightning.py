import pytest
import torch
from torch import nn

from equipoise.errors import EquipoiseError
from equipoise.integrations import lightning as integration
from equipoise.training.recorder import Recorder


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_missing_lightning(monkeypatch):
    monkeypatch.setattr(integration, "Callback", object)
    with pytest.raises(EquipoiseError, match=r"Lightning is not installed(.|\n)*pip install"):
        integration.RecorderCallback(Recorder(mlp()))


def test_records_due_steps_of_a_trainer_and_removes_its_hooks():
    L = pytest.importorskip("lightning")

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = mlp()

        def training_step(self, batch, _):
            loss = self.model(batch).square().mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    record = Recorder(module.model, every=2)
    trainer = L.Trainer(
        max_epochs=3,
        callbacks=[integration.RecorderCallback(record)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(4, 3), batch_size=2))
    frame = record.frame()
    assert sorted(frame.epoch.unique()) == [1, 2, 4, 6]  # two batches per epoch
    updates = frame[frame.quantity == "update/size"]
    assert len(updates) == 8
    assert (updates.value > 0).all()
    assert not module.model[0]._forward_hooks
    assert "train/train_loss" in set(frame.quantity)
