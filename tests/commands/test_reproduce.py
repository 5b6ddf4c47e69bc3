import json
import os
import re
import signal
import time

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.commands.terminal import SweepLog, SweepProgress, format_result
from equipoise.errors import ChoiceError, EquipoiseError, SpecError
from equipoise.experiments.parser import load_experiment
from equipoise.experiments.result import Result, failed_result
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from tests.commands.processes import RUNS, start_command, write_experiment
from tests.experiments.workloads import SPECS, equal_results, spec


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reproduce(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def stored_results(path):
    with Store(path, read_only=True) as store:
        return store.results(curves=True)


def wait_for(condition, process, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.01)


def has_ended(group, seconds=20):
    """Whether all processes of a group have ended; multiprocessing's resource tracker ends a moment later."""
    for _ in range(seconds * 20):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_experiment_is_run_and_tabulated(folder):
    path = write_experiment(folder)
    result = reproduce(path, "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert "## small: A small experiment" in result.stdout
    assert "8 runs to do" in result.stderr
    assert "[8/8]" in result.stderr
    assert "4/4 cells" in result.stderr
    results = stored_results(folder / "equipoise.sqlite")
    assert all(equal_results(results[spec.key], run(spec)) for spec in load_experiment(path).specs)
    assert len(results) == RUNS

    second = reproduce(path, "--jobs", "2", "--json")
    assert "0 runs to do" in second.stderr
    summary = json.loads(second.stdout)
    assert {run["key"] for run in summary["runs"]} == set(results)
    assert {key: result.when for key, result in stored_results("equipoise.sqlite").items()} == {
        key: result.when for key, result in results.items()
    }


def test_two_sweeps_on_one_store(folder):
    path = write_experiment(folder, epochs=20)
    processes = [start_command(folder, "reproduce", str(path), "--jobs", "1") for _ in range(2)]
    stderrs = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], stderrs
    todo = [int(text.split(" runs to do")[0].split()[-1]) for text in stderrs]
    assert sorted(todo) == [0, RUNS]
    assert len(stored_results(folder / "equipoise.sqlite")) == RUNS


def test_ctrl_c_stops_cleanly_and_names_the_way_to_resume(folder):
    path = write_experiment(folder, epochs=100_000)
    process = start_command(folder, "reproduce", str(path), "--jobs", "2")
    checkpoints = folder / "equipoise.sqlite.checkpoints"
    wait_for(lambda: checkpoints.exists() and len(list(checkpoints.glob("*.pt"))) == 2, process)
    status = CliRunner().invoke(app, ["status", str(path), "--json"])
    assert json.loads(status.stdout)["experiments"][0]["running"] == 2
    assert json.loads(status.stdout)["lock_owner"].startswith(f"process {process.pid} on ")
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: 0 of 8 runs are in equipoise.sqlite; run the same command again to resume" in stderr
    assert "Traceback" not in stderr
    assert has_ended(process.pid)
    assert len(list(checkpoints.glob("*.pt"))) == 2
    status = CliRunner().invoke(app, ["status", str(path), "--json"])
    assert json.loads(status.stdout)["experiments"][0]["running"] == 0


def test_failed_runs_exit_with_1_and_are_repeated_on_request(folder):
    path = write_experiment(folder)
    specs = load_experiment(path).specs
    with Store("equipoise.sqlite") as store:
        for one in specs:
            store.put(failed_result(one, "no memory") if one.seed else run(one))
    result = reproduce(path, "--jobs", "1")
    assert result.exit_code == 1
    assert "4 runs failed; --retry failed repeats them" in result.stderr
    assert "no memory" in result.stderr
    assert reproduce(path, "--jobs", "1", "--retry", "failed").exit_code == 0
    assert {result.outcome for result in stored_results("equipoise.sqlite").values()} == {"finished"}


def test_dry_run_lists_missing_runs(folder):
    path = write_experiment(folder)
    specs = load_experiment(path).specs
    with Store("equipoise.sqlite") as store:
        store.put(failed_result(specs[0], "no memory"))
    result = reproduce(path, "--dry-run")
    assert "7 of 8 runs to do" in result.stdout
    assert re.search(r"roughly \d+ (s|min) on one core", result.stdout)
    assert specs[0].key not in result.stdout
    narrow = ("--retry", "failed", "--depth", "4", "--seeds", "3")
    listed = json.loads(reproduce(path, "--dry-run", "--json", *narrow).stdout)
    assert [run["depth"] for run in listed] == [4] * 6
    assert {run["seed"] for run in listed} == {0, 1, 2}


def test_dry_run_needs_no_store(folder):
    assert (
        "60 of 60 runs"
        in reproduce("sgd", "--dataset", "Texas, cornell", "--seeds", "2", "--epochs", "200", "--dry-run").stdout
    )
    assert not list(folder.iterdir())


def test_list_estimates_time(folder):
    path = write_experiment(folder)
    (row,) = json.loads(reproduce(path, "--list", "--json").stdout)
    assert (row["experiment"], row["runs"]) == ("small", RUNS)
    assert row["seconds"] > 0
    result = reproduce(path, "datasets", "--list", "--jobs", "3").stdout
    assert "on 3 cores" in result
    assert "no runs" in result


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), SpecError, "no experiment is named"),
        (("sdg",), ChoiceError, "did you mean 'sgd'"),
        (("sgd", "--dataset", "coar"), ChoiceError, "did you mean 'cora'"),
        (("sgd", "--depth", "ten"), SpecError, "'ten' is not a depth"),
        (("sgd", "--retry", "all"), ChoiceError, "failed"),
        (("sgd", "--ray", "local", "--jobs", "2"), SpecError, "leave out --jobs"),
        (("none.toml",), EquipoiseError, "none.toml"),
        (("sgd", "--store", "no/folder.sqlite"), EquipoiseError, "cannot be opened"),
    ],
)
def test_errors_name_the_mistake(folder, arguments, error, message):
    result = reproduce(*arguments)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


def test_progress_shows_cells_speed_and_time_left():
    now = [0.0]
    cells = [frozenset(one.key for one in SPECS[:2]), frozenset(one.key for one in SPECS[2:])]
    progress = SweepProgress(cells, {SPECS[0].key}, clock=lambda: now[0])
    assert str(progress) == "0/2 cells"
    progress.on_sweep_start(SPECS[1:])
    progress.on_run_start(SPECS[1])
    assert progress.running == {SPECS[1].key: SPECS[1].label}
    now[0] = 60.0
    progress.on_run_end(failed_result(SPECS[1], ""))
    assert not progress.running
    assert str(progress) == "1/2 cells, 60 runs/h, 2 min left"


def test_repeated_run_does_not_count_as_done():
    log = SweepLog([frozenset([SPECS[0].key])], {SPECS[0].key})
    log.on_sweep_start(SPECS[:1])
    assert str(log) == "0/1 cells"


def test_result_in_one_line():
    assert (
        format_result(failed_result(spec(), "no memory")) == "synthetic-citation L=2 xav seed 0: failed, no memory, 0 s"
    )
    good = Result(spec=spec(), outcome="converged", test_accuracy=0.5, best_epoch=7, seconds=100.0)
    assert format_result(good) == "synthetic-citation L=2 xav seed 0: converged, 50.0 % at epoch 7, 2 min"
