import json

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import EquipoiseError

SOURCE = """
from torch_geometric.nn import GAT

def build(depth):
    return GAT(500, 8, num_layers=depth, out_channels=7, v2=True, act="relu")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["inspect", *arguments])


def test_dataset_selects_a_depth_check(run, tmp_path):
    result = run("synthetic-citation", "--depth", "2,3", "--width", "8", "--steps", "4", "--figure", "depth.png")
    assert result.exit_code == 0
    assert "gatv2 of width 8 on synthetic-citation" in result.stdout
    assert "With bal-o, depth " in result.stdout
    assert (tmp_path / "depth.png").stat().st_size > 1000


def test_depth_check_of_a_model_as_json(run):
    result = run("nets.py:build", "--dataset", "synthetic-citation", "--depth", "2", "--steps", "2", "--json")
    results = json.loads(result.stdout)["results"]
    assert [(r["depth"], r["scheme"], r["steps"]) for r in results] == [(2, "default", 2), (2, "bal-o", 2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("syntetic",), "did you mean 'synthetic-citation'"),
        (("synthetic-citation", "--depth", "2,x"), "--depth 2,x is not a list of depths"),
        (("synthetic-citation", "--depth", "2", "--kind", "gatv3"), "did you mean 'gatv2'"),
        (("synthetic-citation", "--dataset", "cora"), "both name a data set"),
        (("synthetic-citation", "--init", "bal-oo"), "did you mean 'bal-o'"),
        (("synthetic-citation", "--plot", "c.png"), "use --figure"),
        (("nets.py", "--depth", "2"), "write nets.py:build"),
        (("nets.py:build",), "build takes depth"),
        (("nets.py:bild", "--depth", "2"), "did you mean build"),
    ],
)
def test_errors_name_the_mistake(run, arguments, message):
    result = run(*arguments)
    assert isinstance(result.exception, EquipoiseError)
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("nets.py:build", "--figure", "c.png"), "--figure"),
        (("nets.py:build", "--lr", "0.5", "--steps", "3"), "--lr, --steps"),
        (("nets.py:build", "--depth", "2", "--kind", "gcn"), "--kind"),
    ],
)
def test_options_without_effect_are_refused(run, arguments, option):
    result = run(*arguments)
    assert result.exit_code == 2
    assert option in result.output


def test_help_has_an_example(run):
    assert "equipoise inspect cora --depth 2,5,10" in " ".join(run("--help").stdout.split())
