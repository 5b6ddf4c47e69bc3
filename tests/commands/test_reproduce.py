import json
import os
import random
import signal
import time

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.commands.progress import Lines, Pace, told
from equipoise.errors import ChoiceError, EquipoiseError, SpecError
from equipoise.experiments.files import load
from equipoise.experiments.result import Result, failed
from equipoise.experiments.run import run
from equipoise.experiments.store import Store
from tests.commands.sweeping import RUNS, experiment, start
from tests.experiments.workloads import SPECS, same, spec


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reproduce(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def kept(path):
    with Store(path, create=False) as store:
        return store.results(curves=True)


def wait_for(condition, process, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.01)


def gone(group, seconds=20):
    """Whether no process of the group is left; multiprocessing's own helper takes a moment to notice."""
    for _ in range(seconds * 20):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_runs_an_experiment_and_reports(folder):
    mine = experiment(folder)
    result = reproduce(mine, "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert "## mine: a small one" in result.stdout
    assert "8 runs to do" in result.stderr
    assert "[8/8]" in result.stderr
    assert "4/4 cells" in result.stderr
    results = kept(folder / "equipoise.sqlite")
    assert all(same(results[spec.key], run(spec)) for spec in load(mine).specs)
    assert len(results) == RUNS

    again = reproduce(mine, "--jobs", "2", "--json")
    assert "0 runs to do" in again.stderr
    summary = json.loads(again.stdout)
    assert {one["key"] for one in summary["runs"]} == set(results)
    assert {key: one.when for key, one in kept("equipoise.sqlite").items()} == {
        key: one.when for key, one in results.items()
    }


def test_killed_three_times_at_a_random_moment(folder):
    """SIGKILL to the driver alone: its workers leave with it, and the next one goes on where they were."""
    mine = experiment(folder, epochs=200)
    store, draw, left = folder / "equipoise.sqlite", random.Random(), []
    checkpoints = folder / "equipoise.sqlite.checkpoints"
    for _ in range(3):
        process = start(folder, "reproduce", str(mine), "--jobs", "2")
        wait_for(lambda: any(checkpoints.glob("*.pt")) if checkpoints.exists() else False, process)
        time.sleep(draw.uniform(0.0, 0.6))
        process.kill()
        process.communicate()
        assert gone(process.pid), "workers outlived their driver"
        left.append(len(list(checkpoints.glob("*.pt"))) if checkpoints.exists() else 0)
    assert any(left), "no run was cut off on its way"
    process = start(folder, "reproduce", str(mine), "--jobs", "2")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    results = kept(store)
    assert len(results) == RUNS
    assert all(same(results[spec.key], run(spec)) for spec in load(mine).specs)
    assert not checkpoints.exists()


def test_two_drivers_at_once(folder):
    mine = experiment(folder, epochs=20)
    both = [start(folder, "reproduce", str(mine), "--jobs", "1") for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    todo = [int(text.split(" runs to do")[0].split()[-1]) for text in said]
    assert sorted(todo) == [0, RUNS]
    assert len(kept(folder / "equipoise.sqlite")) == RUNS


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(folder):
    mine = experiment(folder, epochs=100_000)
    process = start(folder, "reproduce", str(mine), "--jobs", "2")
    checkpoints = folder / "equipoise.sqlite.checkpoints"
    wait_for(lambda: checkpoints.exists() and len(list(checkpoints.glob("*.pt"))) == 2, process)
    status = CliRunner().invoke(app, ["status", str(mine), "--json"])
    assert json.loads(status.stdout)["targets"][0]["running"] == 2
    assert json.loads(status.stdout)["driver"].startswith(f"process {process.pid} on ")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: 0 of 8 runs are in equipoise.sqlite; the same command goes on from here" in said
    assert "Traceback" not in said
    assert gone(process.pid)
    assert len(list(checkpoints.glob("*.pt"))) == 2
    status = CliRunner().invoke(app, ["status", str(mine), "--json"])
    assert json.loads(status.stdout)["targets"][0]["running"] == 0


def test_failed_runs_end_with_1_and_are_done_again_where_asked_for(folder):
    mine = experiment(folder)
    specs = load(mine).specs
    with Store("equipoise.sqlite") as store:
        for one in specs:
            store.put(failed(one, "no memory") if one.seed else run(one))
    result = reproduce(mine, "--jobs", "1")
    assert result.exit_code == 1
    assert "4 runs failed; --retry failed does them again" in result.stderr
    assert "no memory" in result.stderr
    assert reproduce(mine, "--jobs", "1", "--retry", "failed").exit_code == 0
    assert {one.outcome for one in kept("equipoise.sqlite").values()} == {"finished"}


def test_dry_run_shows_what_is_missing(folder):
    mine = experiment(folder)
    specs = load(mine).specs
    with Store("equipoise.sqlite") as store:
        store.put(failed(specs[0], "no memory"))
    shown = reproduce(mine, "--dry-run")
    assert "7 of 8 runs would be done" in shown.stdout
    assert specs[0].key not in shown.stdout
    narrow = ("--retry", "failed", "--depth", "4", "--seeds", "3")
    listed = json.loads(reproduce(mine, "--dry-run", "--json", *narrow).stdout)
    assert [one["depth"] for one in listed] == [4] * 6
    assert {one["seed"] for one in listed} == {0, 1, 2}


def test_dry_run_needs_no_store(folder):
    assert (
        "60 of 60 runs"
        in reproduce("sgd", "--dataset", "Texas, cornell", "--seeds", "2", "--epochs", "200", "--dry-run").stdout
    )
    assert not list(folder.iterdir())


def test_list_estimates_the_time(folder):
    mine = experiment(folder)
    (row,) = json.loads(reproduce(mine, "--list", "--json").stdout)
    assert (row["target"], row["runs"]) == ("mine", RUNS)
    assert row["seconds"] > 0
    shown = reproduce(mine, "datasets", "--list", "--jobs", "3").stdout
    assert "on 3 cores" in shown
    assert "no runs" in shown


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), SpecError, "nothing is named"),
        (("sdg",), ChoiceError, "did you mean 'sgd'"),
        (("sgd", "--dataset", "coar"), ChoiceError, "did you mean 'cora'"),
        (("sgd", "--depth", "ten"), SpecError, "'ten' is no depth"),
        (("sgd", "--retry", "all"), ChoiceError, "failed"),
        (("sgd", "--ray", "local", "--jobs", "2"), SpecError, "leave out --jobs"),
        (("none.toml",), EquipoiseError, "none.toml"),
        (("sgd", "--store", "no/folder.sqlite"), EquipoiseError, "cannot be opened"),
    ],
)
def test_mistakes_are_named(folder, arguments, error, message):
    result = reproduce(*arguments)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


def test_pace_tells_cells_speed_and_time_left():
    now = [0.0]
    cells = [frozenset(one.key for one in SPECS[:2]), frozenset(one.key for one in SPECS[2:])]
    pace = Pace(cells, {SPECS[0].key}, clock=lambda: now[0])
    assert str(pace) == "0/2 cells"
    pace.begins(SPECS[1:])
    pace.starts(SPECS[1])
    assert pace.running == {SPECS[1].key: SPECS[1].label}
    now[0] = 60.0
    pace.ends(failed(SPECS[1], ""))
    assert not pace.running
    assert str(pace) == "1/2 cells, 60 runs an hour, 2 min left"


def test_what_is_tried_again_is_not_done():
    lines = Lines([frozenset([SPECS[0].key])], {SPECS[0].key})
    lines.begins(SPECS[:1])
    assert str(lines) == "0/1 cells"


def test_a_run_in_one_line():
    assert told(failed(spec(), "no memory")) == "synthetic-citation L=2 xav seed 0: failed, no memory, 0 s"
    good = Result(spec=spec(), outcome="converged", test_accuracy=0.5, best_epoch=7, seconds=100.0)
    assert told(good) == "synthetic-citation L=2 xav seed 0: converged, 50.0 % at epoch 7, 2 min"
