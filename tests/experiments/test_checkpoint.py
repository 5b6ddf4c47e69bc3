import hashlib
import io
import logging
import os
import resource
import signal

import pytest
import torch

from equipoise.errors import TrainingError
from equipoise.experiments.checkpoint import DIGITS, HEADER, Checkpoint
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


def state(loss=1.0, size=1):
    return TrainingState({"weight": torch.arange(float(size))}, {}, {"loss": [loss]}, torch.get_rng_state())


def rewrite(path, saved):
    """Replace the content of a checkpoint and its checksum."""
    file = io.BytesIO()
    torch.save(saved, file)
    path.write_bytes(HEADER + hashlib.sha256(file.getvalue()).hexdigest().encode() + b"\n" + file.getvalue())


def content(path):
    return torch.load(io.BytesIO(path.read_bytes()[len(HEADER) + DIGITS + 1 :]), weights_only=True)


def interrupted_run(path, **settings):
    one = spec(**{"epochs": 6, "init": "bal-o", **settings})
    with pytest.raises(Killed):
        run(one, KillingCheckpoint(path, one.key, interval=0.0))
    return one


def test_kill_while_saving_keeps_the_previous_checkpoint(tmp_path):
    """A process that dies between the write and the rename leaves the previous file and a temporary one."""
    path = tmp_path / "one.pt"
    Checkpoint(path, "key").save(state(loss=1.0))
    if not (child := os.fork()):
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        Checkpoint(path, "key").save(state(loss=2.0))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    assert Checkpoint(path, "key").load().history == {"loss": [1.0]}


def test_run_goes_on_without_a_checkpoint_when_the_disk_is_full(tmp_path, caplog):
    """With a file-size limit, the operating system refuses the write just as on a full disk."""
    path = tmp_path / "one.pt"
    one = interrupted_run(path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with caplog.at_level(logging.WARNING):
            result = run(one, Checkpoint(path, one.key, interval=0.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert equal_results(result, run(one))
    assert caplog.text.count("the run goes on without") == 1, "one warning per run, not one per epoch"
    assert "File too large" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == ["one.pt"], "temporary files would fill the disk"
    assert path.read_bytes() == before


def test_folder_that_cannot_be_created(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    one = spec()
    with caplog.at_level(logging.WARNING):
        result = run(one, Checkpoint(tmp_path / "file" / "one.pt", one.key, interval=0.0))
    assert result.outcome == "finished"
    assert "the run goes on without" in caplog.text


@pytest.mark.parametrize("position", [0, 30, 100, 2000, -5000, -1])
def test_flipped_bytes_are_noticed_wherever_they_are(tmp_path, caplog, position):
    path = tmp_path / "one.pt"
    one = interrupted_run(path, epochs=5)
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 0x10
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert Checkpoint(path, one.key).load() is None
    assert "one.damaged, the run starts over" in caplog.text
    assert (tmp_path / "one.damaged").read_bytes() == damaged
    assert not path.exists()


def test_a_damaged_file_does_not_replace_an_earlier_one(tmp_path):
    (tmp_path / "one.damaged").write_text("earlier")
    (tmp_path / "one.pt").write_text("not a checkpoint")
    assert Checkpoint(tmp_path / "one.pt", "key").load() is None
    assert (tmp_path / "one.damaged").read_text() == "earlier"
    assert (tmp_path / "one.damaged-2").read_text() == "not a checkpoint"


def test_a_file_that_is_not_a_checkpoint_of_the_run_is_refused(tmp_path):
    path = tmp_path / "one.pt"
    Checkpoint(path, "key").load(named=True)  # there is no file yet
    one = interrupted_run(path)
    Checkpoint(path, one.key).load(named=True)
    with pytest.raises(TrainingError, match="belongs to another run"):
        Checkpoint(path, "another").load(named=True)
    path.write_bytes(path.read_bytes()[:-200])
    Checkpoint(path, one.key).load(named=True)  # damaged: set aside
    for text in ("my notes", ""):
        path.write_text(text)
        with pytest.raises(TrainingError, match="it is not a checkpoint"):
            Checkpoint(path, one.key).load(named=True)
        assert path.read_text() == text
    with pytest.raises(TrainingError, match="cannot be read"):
        Checkpoint(tmp_path, one.key).load(named=True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-200]), "checksum is wrong"),
        (lambda path: path.write_bytes(b""), "does not begin like a checkpoint"),
        (lambda path: path.write_text("not a checkpoint"), "does not begin like a checkpoint"),
        (lambda path: torch.save(content(path), path), "does not begin like a checkpoint"),
        (lambda path: rewrite(path, {"weights": torch.ones(2)}), "not a checkpoint of a run"),
        (lambda path: rewrite(path, {**content(path), "key": "0" * 16}), "another run"),
        (lambda path: rewrite(path, {**content(path), "versions": {"torch": "1.0"}}), "other library versions"),
        (lambda path: rewrite(path, {**content(path), "state": {"no": "state"}}), "unreadable"),
    ],
    ids=["truncated", "empty", "text", "without checksum", "foreign", "another run", "other versions", "no state"],
)
def test_unusable_checkpoint_is_ignored_with_a_warning(tmp_path, caplog, damage, message):
    path = tmp_path / "one.pt"
    one = interrupted_run(path)
    damage(path)
    with caplog.at_level(logging.WARNING):
        assert equal_results(run(one, Checkpoint(path, one.key)), run(one))
    assert message in caplog.text
    assert "starts over" in caplog.text
