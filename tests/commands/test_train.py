import json
import resource
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.commands.terminal import epoch_bar
from equipoise.errors import EquipoiseError, SpecError, TrainingError
from equipoise.nn.stack import Stack
from equipoise.training.history import History


def run(*arguments):
    return CliRunner().invoke(app, ["train", "--layers", "3", "--width", "8", "--lr", "0.1", *arguments])


def test_prints_a_summary():
    result = run("--epochs", "4")
    assert result.exit_code == 0
    lines = dict(
        line.split(None, 1) if "  " not in line else line.split("  ", 1) for line in result.stdout.splitlines()
    )
    assert lines["outcome"].strip() == "finished"
    assert "epochs run" in result.stdout


def test_json_has_the_curves_and_is_reproducible():
    first, second = (json.loads(run("--epochs", "4", "--json", "--dropout", "0.2").stdout) for _ in range(2))
    assert len(first["loss"]) == first["epochs"] == 4
    assert first["loss"] == second["loss"]
    assert json.loads(run("--epochs", "4", "--json", "--seed", "1").stdout)["loss"] != first["loss"]


def test_saves_the_best_model(tmp_path):
    path = tmp_path / "model.pt"
    assert run("--epochs", "4", "--save", str(path)).exit_code == 0
    state = torch.load(path, weights_only=True)
    Stack("gatv2", [500, 8, 8, 7]).load_state_dict(state)


def test_model_that_cannot_be_saved_is_refused_before_training(tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("training started")

    monkeypatch.setattr("equipoise.training.loop.train", never)
    (tmp_path / "kept.pt").write_bytes(b"kept")
    for save, message in (
        (tmp_path, "this is a folder, not a file"),
        (Path("/proc/model.pt"), "cannot be written"),  # a place that nobody can write to, root included
        (Path("/proc/version"), "cannot be written"),
    ):
        result = run("--epochs", "1", "--save", str(save))
        assert isinstance(result.exception, SpecError), result.output
        assert message in str(result.exception)
    assert isinstance(run("--save", str(tmp_path / "kept.pt")).exception, AssertionError)
    assert [file.name for file in tmp_path.iterdir()] == ["kept.pt"]
    assert (tmp_path / "kept.pt").read_bytes() == b"kept"


def test_full_disk_keeps_the_previous_model_and_the_numbers(tmp_path):
    """A file-size limit refuses the write just as a full disk does."""
    path = tmp_path / "model.pt"
    path.write_bytes(b"kept")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        result = run("--epochs", "2", "--save", str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "test accuracy" in result.stdout
    assert isinstance(result.exception, TrainingError)
    assert "File too large" in str(result.exception)
    assert path.read_bytes() == b"kept"
    assert list(tmp_path.iterdir()) == [path]


def test_long_training_is_announced_before_the_network_is_built(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("equipoise.data.load.load_dataset", interrupted)
    for arguments in (("--epochs", "999999999999999999"), ("--layers", "100", "--epochs", "1000000")):
        result = run(*arguments, "--init", "xav")
        assert f"{arguments[-1]} epochs may take " in result.stderr
    assert "years" not in result.stderr
    assert "may take" not in run("--epochs", "5", "--init", "xav").stderr


def test_slow_training_is_announced_once_its_speed_is_known(capsys):
    with epoch_bar(1000) as on_epoch:
        for epoch, seconds in ((1, 1.0), (2, 9.0), (3, 30.0)):
            on_epoch(epoch, History(loss=[1.0], val_metric=[0.5], seconds=seconds))
    assert capsys.readouterr().err.count("1000 epochs may take 1.2 h") == 1


def test_bias_and_separate_weights(tmp_path):
    path = tmp_path / "model.pt"
    assert run("--epochs", "1", "--bias", "--no-share-weights", "--save", str(path)).exit_code == 0
    Stack("gatv2", [500, 8, 8, 7], bias=True, share_weights=False).load_state_dict(torch.load(path, weights_only=True))


def test_diverged_run_exits_with_1():
    result = run("--epochs", "30", "--lr", "1e12")
    assert result.exit_code == 1
    assert "diverged: the loss is" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--init", "bal-oo"), "did you mean 'bal-o'"),
        (("--kind", "gatv3"), "did you mean 'gatv2'"),
        (("--dataset", "coar"), "did you mean 'cora'"),
        (("--optimizer", "sdg"), "unknown optimizer"),
        (("--activation", "relo"), "did you mean 'relu'"),
        (("--save", "/no/such/folder/model.pt"), "there is no folder /no/such/folder"),
        (("--width", "7"), "7 is odd"),
    ],
)
def test_errors_name_the_mistake(arguments, message):
    result = run("--epochs", "1", *arguments)
    assert isinstance(result.exception, EquipoiseError)
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--parts", "parts", "--dataset", "cora"), "the parts contain the data"),
        (("--checkpoint", "state.pt"), "needs --parts"),
        (("--timeout", "5"), "needs --parts"),
        (("--parts", "parts", "--checkpoint-every", "5"), "needs --checkpoint FILE"),
    ],
)
def test_options_that_exclude_each_other(arguments, message):
    result = run("--epochs", "1", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_checkpoint_that_is_no_file_is_refused_before_training(tmp_path):
    result = run("--epochs", "1", "--parts", "parts", "--checkpoint", str(tmp_path))
    assert "this is a folder, not a file" in str(result.exception)


def test_pygs_own_initialisation(tmp_path):
    options = ("--layers", "3", "--width", "8", "--epochs", "3", "--lr", "0.1", "--json")
    default, again = (json.loads(run(*options, "--init", "default").stdout) for _ in range(2))
    assert default["loss"] == again["loss"]
    assert default["loss"] != json.loads(run(*options, "--init", "xav").stdout)["loss"]


def test_torchrun_without_parts_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run("--epochs", "1")
    assert isinstance(result.exception, TrainingError)
    assert "torchrun started 2 processes" in str(result.exception)
