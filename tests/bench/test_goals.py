import importlib.util
import json
import sys
from pathlib import Path

import pytest

from equipoise.bench.cases import CASE_NAMES
from equipoise.bench.report import EQUIPOISE, PYG, BenchReport, FirstCall, IsolatedRun, RecorderCost, Timing

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "goals.py"

REPORT = BenchReport(
    timings=[
        Timing(
            "cora-10", 1, {EQUIPOISE: [9.0, 10.0, 30.0], PYG: [120.0], "PyG sparse": [110.0], "DGL": [50.0]}, {}, 8.0
        ),
        Timing("pubmed-10", 1, {EQUIPOISE: [100.0], PYG: [700.0]}),
        Timing("pubmed-10", 2, {EQUIPOISE: [50.0], PYG: [400.0]}),
        Timing("cora-80", 1, {EQUIPOISE: [310.0]}),
    ],
    isolated=[
        IsolatedRun("large", EQUIPOISE, 2000.0, 10**8, 10**9),
        IsolatedRun("large", PYG, 60_000.0, 10**9, 2 * 10**9),
        IsolatedRun("huge", EQUIPOISE, 90_000.0, 5 * 2**30, 8 * 2**30),
    ],
    first_call=FirstCall(12.0, 1.5),
    recorder=RecorderCost("recorder", {"everything": 10.0}, {"everything": 3.0}),
)


@pytest.fixture(scope="module")
def goals():
    spec = importlib.util.spec_from_file_location("benchmark_goals", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_goal_names_a_case(goals):
    assert {goal.case for goal in goals.GOALS} <= set(CASE_NAMES)


@pytest.mark.parametrize(
    ("description", "value", "met"),
    [
        ("Cora, 10 layers: speed-up", 11.0, True),
        ("Cora, 10 layers: epoch over roofline", 1.25, True),
        ("Pubmed, 10 layers: speed-up", 7.0, False),
        ("Pubmed, 10 layers: two threads", 2.0, True),
        ("169k nodes, 2.3M edges, 4 layers: speed-up", 30.0, True),
        ("169k nodes, 2.3M edges, 4 layers: PyG's peak memory", 10.0, False),
        ("2.4M nodes", 8.0, True),
        ("first epoch, empty", 12.0, True),
        ("first epoch, filled", 1.5, False),
        ("Cora, 80 layers", 0.31, False),
        ("Cora, 1000 layers", None, None),
        ("Citeseer", None, None),
        ("Cora, 10 layers: all quantities recorded, every epoch", 30.0, False),
        ("Cora, 10 layers: all quantities recorded, every 25th", 1.2, True),
    ],
)
def test_values_by_hand(goals, description, value, met):
    (goal,) = (goal for goal in goals.GOALS if goal.description.startswith(description))
    assert goal.quantity(REPORT) == (None if value is None else pytest.approx(value))
    assert goal.is_met(REPORT) is met


def test_script_prints_measured_goals_and_fails_if_one_is_missed(goals, tmp_path, capsys):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(REPORT.to_dict()))
    assert goals.main([str(path), "--markdown"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "| first epoch, filled kernel cache | 1.50 s | ≤ 1 s | no | compile |" in lines
    assert not any("Citeseer" in line for line in lines)


def test_script_succeeds_without_a_missed_goal(goals, tmp_path, capsys):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(BenchReport(first_call=FirstCall(12.0, 0.5)).to_dict()))
    assert goals.main([str(path)]) == 0
    assert "first epoch" in capsys.readouterr().out
    path.write_text(json.dumps(BenchReport().to_dict()))
    assert goals.main([str(path)]) == 0
    assert "none of the goals was measured" in capsys.readouterr().out


def test_script_names_an_unreadable_report(goals, tmp_path, capsys):
    assert goals.main([str(tmp_path / "none.json")]) == 2
    assert "cannot read a benchmark report" in capsys.readouterr().err
