"""Command lines that cannot work end with an error in words before any work, never with a traceback."""

import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import EquipoiseError, is_out_of_memory
from equipoise.experiments.store import Store
from tests.commands.processes import start_python

GRID = '[grid]\ndataset = ["cora", "texas"]\ndepth = [2, 3]\nlr = 0.1\n'
HUGE = "9" * 24


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    published = '[[published]]\ndataset = "cora"\ndepth = [2, 3]\naccuracy = [nan, 3.0]\n'
    (tmp_path / "nan.toml").write_text(GRID + published)
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    (tmp_path / "every.toml").write_text("every = 0\n" + GRID)
    (tmp_path / "where.toml").write_text(GRID + '[[set]]\nwhere = { dataset = "nope" }\nlr = 0.2\n')
    (tmp_path / "elsewhere.toml").write_text(GRID + '[[set]]\nwhere = { dataset = "pubmed" }\nlr = 0.2\n')
    axes = "".join(f"{name} = [{', '.join(map(str, range(1, 60)))}]\n" for name in ("width", "heads", "out_heads"))
    (tmp_path / "many.toml").write_text(GRID + axes)
    (tmp_path / "file").write_text("")
    with Store("runs.sqlite"):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"train --seed {HUGE}", "seed must be a whole number"),
        ("train --weight-decay 1e300", "weight_decay must be"),
        ("train --lr nan", "lr must be a number above 0"),
        ("train --save .", "this is a folder, not a file"),
        ("train --save file/model.pt", "there is no folder"),
        ("status datasets --init x", "datasets has no init"),
        ("inspect cora --lr -1", "the learning rate must be finite and above 0"),
        ("inspect cora --figure x.txt", "unknown suffix of --figure x.txt"),
        ("discover module:factory --plot file/x.png", "there is no folder"),
        ("demo --plot x.txt", "unknown suffix of --plot x.txt"),
        ("demo --lr 0", "the learning rate must be finite and above 0"),
        ("demo --dataset nope", "unknown data set 'nope'"),
        ("bench --quick --json .", "this is a folder, not a file"),
        ("reproduce sgd sgd --dry-run", "the experiment 'sgd' is named twice"),
        ("report sgd gcn sgd --store runs.sqlite", "the experiment 'sgd' is named twice"),
        ("report nan.toml --store runs.sqlite", "accuracy must be a finite number, got nan"),
        ("report sgd --store runs.sqlite --html x.pdf", "unknown suffix of --html x.pdf"),
        ("report sgd --store runs.sqlite --out file", "file cannot be written"),
        ("store export file/x.csv --store none.sqlite", "there is no folder"),
        ("status deep.toml", "nested too deeply"),
        ("status every.toml", "every must be greater than or equal to 1"),
        ("status where.toml", "unknown dataset 'nope'"),
        ("status elsewhere.toml", "unknown dataset 'pubmed'"),
        ("status many.toml", "an experiment has at most 100000"),
        ("reproduce sgd --seeds 999999999 --dry-run", "an experiment has at most 100000"),
        (f"reproduce sgd --epochs {HUGE} --dry-run", "epochs must be a whole number"),
        ("reproduce conservation --figure x.txt", "unknown suffix of --figure x.txt"),
    ],
)
def test_refused_in_words(arguments, message):
    result = CliRunner().invoke(app, arguments.split())
    assert isinstance(result.exception, EquipoiseError), result.output
    assert message in str(result.exception)


def run_main(*arguments, **options):
    command = [sys.executable, "-m", "equipoise", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **options)


def test_full_disk_behind_stdout():
    with open("/dev/full", "w") as full:
        result = run_main("status", stdout=full)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "error: the output cannot be read or written: No space left on device"
    assert "Traceback" not in result.stderr


def test_failed_allocation():
    result = run_main("train", "--width", "100000000", "--epochs", "1")
    assert result.returncode == 1
    assert "error: there is not enough memory" in result.stderr
    assert "Traceback" not in result.stderr
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_interrupted_demo(tmp_path):
    """Ctrl-C reaches the demo and its worker processes."""
    demo = start_python(tmp_path, "-m", "equipoise", "demo", "--epochs", "100000", "--jobs", "2")
    for line in demo.stdout:
        if "four initialisation schemes" in line:
            break
    time.sleep(1)  # some workers are starting, and import torch
    os.killpg(demo.pid, signal.SIGINT)
    _, stderr = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "Traceback" not in stderr
    assert stderr.splitlines()[-1].endswith("interrupted")


@pytest.mark.parametrize(("command", "number"), [("status sgd", "675"), ("data list", "1092/729/456")])
def test_narrow_terminal_cuts_no_number(monkeypatch, command, number):
    monkeypatch.setenv("COLUMNS", "30")
    assert number in CliRunner().invoke(app, command.split()).stdout
