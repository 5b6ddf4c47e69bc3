import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from equipoise import __version__
from equipoise.cli import app

SOURCE = """
import torch
from torch import nn

def relu():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)

def tanh():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)

def wrong_width():
    return relu()[0], torch.randn(5, 7)
"""
LAW = "0.weight[i,:] + 0.bias[i] = 2.weight[:,i]   (4 neurons)"


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_discover_prints_the_laws(run):
    result = run("discover", "nets.py:relu")
    assert result.exit_code == 0
    assert result.stdout.strip() == LAW


def test_discover_as_json(run):
    (law,) = json.loads(run("discover", "nets.py:relu", "--json").stdout)
    assert law == {
        "law": LAW,
        "incoming": ["0.weight[i,:]", "0.bias[i]"],
        "outgoing": ["2.weight[:,i]"],
        "neurons": 4,
        "exponents": [1, 1, -1],
        "conserved": "‖0.weight[i,:]‖² + ‖0.bias[i]‖² − ‖2.weight[:,i]‖²",
        "buffers": [],
    }


def test_discover_without_laws_points_to_inspect(run):
    assert "`equipoise inspect nets.py:tanh` explains why" in run("discover", "nets.py:tanh").stdout


def test_inspect_explains(run):
    assert "tanh is not positively homogeneous" in run("inspect", "nets.py:tanh").stdout
    data = json.loads(run("inspect", "nets.py:relu", "--json").stdout)
    assert data["laws"][0]["neurons"] == 4


@pytest.mark.parametrize("command", ["discover", "inspect"])
def test_plot_saves_a_figure(run, tmp_path, command):
    assert run(command, "nets.py:relu", "--plot", "c.png").exit_code == 0
    assert (tmp_path / "c.png").stat().st_size > 1000


def equipoise(*arguments, cwd):
    command = [sys.executable, "-m", "equipoise", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("discover", "nets.py:wrong_width"), "does not run on these inputs"),
        (("discover", "nets.py:rulu"), "did you mean relu"),
        (("discover", "nets.py:tanh", "--plot", "c.png"), "there is no law to plot"),
        (("discover",), "Missing argument"),
        (("dicsover", "nets.py:relu"), "discover"),
    ],
)
def test_impossible_requests_exit_with_2_and_no_traceback(run, tmp_path, arguments, message):
    result = equipoise(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["demo", "discover", "inspect"])
def test_help_has_an_example(run, command):
    assert f"Example: equipoise {command}" in " ".join(run(command, "--help").stdout.split())


def test_version(run):
    assert run("--version").stdout == f"equipoise {__version__}\n"
