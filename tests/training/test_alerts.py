import warnings

import pytest
import torch

from equipoise.errors import TrainingWarning
from equipoise.nn.stack import Stack
from equipoise.training.alerts import Alerts
from equipoise.training.loop import train
from equipoise.training.recorder import Recorder
from equipoise.training.recording import scalar_record
from tests.training.conftest import CLASSES, FEATURES


def test_a_layer_that_does_not_move_is_named_once_with_its_epoch(data):
    model = Stack("gatv2", [FEATURES, 8, 8, CLASSES])
    frozen = set(model.convs[1].parameters())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p not in frozen], lr=0.1)
    record = Recorder(model, every=2)
    with pytest.warns(TrainingWarning, match="epoch 4: layer 2 has not moved since epoch 1") as caught:
        train(model, data, optimizer=optimizer, epochs=10, record=record)
    assert sum("not moved" in str(warning.message) for warning in caught) == 1
    assert record.alerts.messages == ["layer 2 has not moved since epoch 1"]
    frame = record.frame()
    alerts = frame[frame.quantity == "alert/not_moved"]
    assert alerts[["epoch", "layer", "value"]].to_numpy().tolist() == [[4, 2, 1.0]]


def test_equal_representations_are_named_with_their_first_layer():
    alerts = Alerts()

    def records(*distances):
        return [scalar_record("representation/mad", layer, d) for layer, d in enumerate(distances, start=1)]

    assert alerts.check(1, records(0.1, 1e-3, 1e-5)) == []
    assert alerts.check(2, records(1e-9, 1e-3, 1e-5)) == []  # equal, but not from there onwards
    with pytest.warns(TrainingWarning, match="representations of layer 3 onwards are equal to 1e-07"):
        (record,) = alerts.check(3, records(0.1, 1e-3, 1e-9))
    assert (record.quantity, record.layer, float(record.values)) == ("alert/equal_representations", 3, 1e-9)
    assert alerts.check(4, records(0.1, 1e-3, 1e-9)) == []
    with pytest.warns(TrainingWarning, match="layer 2 onwards"):
        alerts.check(5, records(0.1, 1e-9, 1e-9))


def test_a_layer_that_moves_again_starts_a_new_count():
    alerts = Alerts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch, size in enumerate((0.0, 0.0, 1e-3, 0.0, 0.0), start=1):
            assert alerts.check(epoch, [scalar_record("update/size", 1, size)]) == []
    with pytest.warns(TrainingWarning, match="since epoch 4"):
        alerts.check(6, [scalar_record("update/size", 1, 0.0)])


def test_alerts_can_be_switched_off(data):
    model = Stack("gatv2", [FEATURES, 8, CLASSES])
    record = Recorder(model, every=1, alerts=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        train(model, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), epochs=5, record=record)
    assert not record.frame().quantity.str.startswith("alert").any()


def test_layers_that_have_not_moved_since_the_same_epoch_share_a_message():
    alerts = Alerts()
    sizes = {1: 1e-3, 2: 0.0, 3: 0.0, 4: 0.0, 5: 1e-3, 6: 0.0}
    records = [scalar_record("update/size", layer, size) for layer, size in sizes.items()]
    with pytest.warns(TrainingWarning, match="epoch 3: layers 2–4, 6 have not moved since epoch 1") as caught:
        found = [alerts.check(epoch, records) for epoch in (1, 2, 3, 4)]
    assert len(caught) == 1
    assert [[record.layer for record in group] for group in found] == [[], [], [2, 3, 4, 6], []]
