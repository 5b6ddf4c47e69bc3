import sys

import pytest
import torch
from torch import nn

from equipoise.errors import EquipoiseError
from equipoise.integrations.tensorboard import TensorBoard
from equipoise.laws.discover import discover
from equipoise.training.recorder import Recorder


@pytest.fixture
def record():
    mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return Recorder(mlp, discover(mlp, torch.randn(5, 3)), every=2)


def training_loop(record, epochs):
    optimizer = torch.optim.SGD(record.model.parameters(), lr=0.1)
    record.attach(optimizer)
    for epoch in range(1, epochs + 1):
        optimizer.zero_grad()
        record.model(torch.randn(5, 3)).square().mean().backward()
        record.step(epoch)
        optimizer.step()


def test_missing_tensorboard(record, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(EquipoiseError, match=r"TensorBoard is not installed(.|\n)*pip install"):
        TensorBoard(tmp_path, record)


def test_charts_are_per_layer_not_per_parameter(record, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    with TensorBoard(tmp_path / "run", record):
        training_loop(record, 4)
    assert record.listeners == []
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert "balance/layer01/c_max" in tags
    assert "gradient/layer02/features" in tags
    assert not any("weight" in tag or "bias" in tag for tag in tags)
    assert [event.step for event in events.Scalars("balance/layer01/c_max")] == [1, 2, 4]
    frame = record.frame()
    largest = frame[(frame.quantity == "balance/c") & (frame.epoch == 4)].value.abs().max()
    assert events.Scalars("balance/layer01/c_max")[-1].value == pytest.approx(largest)
