import logging

import pytest
import torch

from equipoise.experiments.checkpoint import Checkpoint
from equipoise.experiments.run import run
from equipoise.train.state import TrainingState
from tests.experiments.workloads import same, spec


class Killed(BaseException):
    """Nothing that a run catches: it ends as if the process had been killed."""


class DiesAt(Checkpoint):
    """Dies right after a number of checkpoints."""

    left = 4

    def save(self, state):
        super().save(state)
        self.left -= 1
        if not self.left:
            raise Killed


@pytest.mark.parametrize("settings", [{}, {"dropout": 0.4, "optimizer": "adam", "lr": 0.01, "patience": 3}])
def test_goes_on_to_the_bit(tmp_path, settings):
    one = spec(epochs=10, init="bal-o", **settings)
    path = tmp_path / "one.pt"
    with pytest.raises(Killed):
        run(one, DiesAt(path, one.key, every=0.0))
    state = Checkpoint(path, one.key).load()
    assert len(state.history["loss"]) == 4, "the run did not die on its way"
    assert same(run(one, Checkpoint(path, one.key)), run(one))


def test_at_most_once_in_a_while(tmp_path):
    one = spec(epochs=5)
    run(one, Checkpoint(tmp_path / "one.pt", one.key, every=60.0))
    assert not list(tmp_path.iterdir())


def test_a_new_state_replaces_the_old_one_whole(tmp_path, monkeypatch):
    one = spec()
    path = tmp_path / "one.pt"
    checkpoint = Checkpoint(path, one.key)
    state = TrainingState({}, {}, {"loss": [1.0]}, torch.get_rng_state())
    checkpoint.save(state)
    before = path.read_bytes()

    def cut_off(saved, file):
        file.write(b"half of i")
        raise Killed

    monkeypatch.setattr(torch, "save", cut_off)
    with pytest.raises(Killed):
        checkpoint.save(state)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path, saved: path.write_bytes(path.read_bytes()[:200]), "cannot be read"),
        (lambda path, saved: path.write_text("not a checkpoint"), "cannot be read"),
        (lambda path, saved: torch.save({"weights": torch.ones(2)}, path), "not one of ours"),
        (lambda path, saved: torch.save({**saved, "key": "0" * 16}, path), "another run"),
        (lambda path, saved: torch.save({**saved, "versions": {"torch": "1.0"}}, path), "other versions"),
    ],
    ids=["cut off", "text", "foreign", "another run", "other versions"],
)
def test_what_is_of_no_use_is_ignored_with_a_notice(tmp_path, caplog, spoil, says):
    one = spec(epochs=6, init="bal-o")
    path = tmp_path / "one.pt"
    with pytest.raises(Killed):
        run(one, DiesAt(path, one.key, every=0.0))
    spoil(path, torch.load(path, weights_only=True))
    with caplog.at_level(logging.WARNING):
        assert same(run(one, Checkpoint(path, one.key)), run(one))
    assert says in caplog.text
    assert "starts over" in caplog.text
