import json

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiments.parser import experiment_names, further_experiment_names, load_experiment
from equipoise.experiments.result import Result, failed_result
from equipoise.experiments.store import Store
from tests.commands.processes import write_experiment


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def status(*arguments):
    result = CliRunner().invoke(app, ["status", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def test_counts_runs(tmp_path):
    path = write_experiment(tmp_path)
    specs = load_experiment(path).specs
    with Store("other.sqlite") as store:
        store.put(failed_result(specs[0], "no memory"))
        store.put(Result(spec=specs[1], outcome="diverged"))
        store.put(Result(spec=specs[2], outcome="converged", test_accuracy=0.5))
        store.mark_running(specs[3].key)  # by a sweep that was killed
    (row,) = json.loads(status(path, "--store", "other.sqlite", "--json").stdout)["experiments"]
    assert row == {"experiment": "small", "runs": 8, "done": 1, "running": 0, "missing": 5, "failed": 1, "diverged": 1}
    (row,) = json.loads(status(path, "--store", "other.sqlite", "--epochs", "7", "--json").stdout)["experiments"]
    assert row["missing"] == 8


def test_all_experiments_without_a_store(tmp_path):
    result = status()
    assert all(name in result.stdout for name in (*experiment_names(), *further_experiment_names()))
    assert "there is no store" in result.stderr
    assert not list(tmp_path.iterdir())
