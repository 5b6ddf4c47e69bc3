import logging

import pytest
import torch

from equipoise.experiments.checkpoint import Checkpoint
from equipoise.experiments.run import run
from equipoise.training.history import TrainingState
from tests.experiments.workloads import equal_results, spec


class Killed(BaseException):
    """Not an ``Exception``, so ``run`` does not catch it: the run ends as if its process had been killed."""


class KillingCheckpoint(Checkpoint):
    """Raises after a number of checkpoints."""

    remaining = 4

    def save(self, state):
        super().save(state)
        self.remaining -= 1
        if not self.remaining:
            raise Killed


@pytest.mark.parametrize("settings", [{}, {"dropout": 0.4, "optimizer": "adam", "lr": 0.01, "patience": 3}])
def test_resumed_run_is_bit_identical(tmp_path, settings):
    one = spec(epochs=10, init="bal-o", **settings)
    path = tmp_path / "one.pt"
    with pytest.raises(Killed):
        run(one, KillingCheckpoint(path, one.key, interval=0.0))
    state = Checkpoint(path, one.key).load()
    assert len(state.history["loss"]) == 4, "the run was not interrupted"
    assert equal_results(run(one, Checkpoint(path, one.key)), run(one))


def test_no_checkpoint_before_the_interval_has_passed(tmp_path):
    one = spec(epochs=5)
    run(one, Checkpoint(tmp_path / "one.pt", one.key, interval=60.0))
    assert not list(tmp_path.iterdir())


def test_failed_save_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    one = spec()
    path = tmp_path / "one.pt"
    checkpoint = Checkpoint(path, one.key)
    state = TrainingState({}, {}, {"loss": [1.0]}, torch.get_rng_state())
    checkpoint.save(state)
    before = path.read_bytes()

    def save_partially(saved, file):
        file.write(b"partial")
        raise Killed

    monkeypatch.setattr(torch, "save", save_partially)
    with pytest.raises(Killed):
        checkpoint.save(state)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path, saved: path.write_bytes(path.read_bytes()[:200]), "cannot be read"),
        (lambda path, saved: path.write_text("not a checkpoint"), "cannot be read"),
        (lambda path, saved: torch.save({"weights": torch.ones(2)}, path), "not a checkpoint of equipoise"),
        (lambda path, saved: torch.save({**saved, "key": "0" * 16}, path), "another run"),
        (lambda path, saved: torch.save({**saved, "versions": {"torch": "1.0"}}, path), "other library versions"),
    ],
    ids=["truncated", "text", "foreign", "another run", "other versions"],
)
def test_unusable_checkpoint_is_ignored_with_a_warning(tmp_path, caplog, damage, message):
    one = spec(epochs=6, init="bal-o")
    path = tmp_path / "one.pt"
    with pytest.raises(Killed):
        run(one, KillingCheckpoint(path, one.key, interval=0.0))
    damage(path, torch.load(path, weights_only=True))
    with caplog.at_level(logging.WARNING):
        assert equal_results(run(one, Checkpoint(path, one.key)), run(one))
    assert message in caplog.text
    assert "starts over" in caplog.text
