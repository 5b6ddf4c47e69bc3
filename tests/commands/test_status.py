import json

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiments.files import load, targets
from equipoise.experiments.result import Result, failed
from equipoise.experiments.store import Store
from tests.commands.sweeping import experiment


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def status(*arguments):
    result = CliRunner().invoke(app, ["status", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def test_counts_runs(tmp_path):
    mine = experiment(tmp_path)
    specs = load(mine).specs
    with Store("other.sqlite") as store:
        store.put(failed(specs[0], "no memory"))
        store.put(Result(spec=specs[1], outcome="diverged"))
        store.put(Result(spec=specs[2], outcome="converged", test_accuracy=0.5))
        store.note_running(specs[3].key)  # by a driver that is no more
    (row,) = json.loads(status(mine, "--store", "other.sqlite", "--json").stdout)["targets"]
    assert row == {"target": "mine", "runs": 8, "done": 1, "running": 0, "missing": 5, "failed": 1, "diverged": 1}
    (few,) = json.loads(status(mine, "--store", "other.sqlite", "--epochs", "7", "--json").stdout)["targets"]
    assert few["missing"] == 8


def test_all_targets_without_a_store(tmp_path):
    shown = status()
    assert all(target in shown.stdout for target in targets())
    assert "there is no store" in shown.stderr
    assert not list(tmp_path.iterdir())
