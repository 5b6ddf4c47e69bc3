import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from equipoise.bench.cases import Case
from equipoise.bench.figure import draw_scaling
from equipoise.bench.report import OURS, PYG, Note, Report, Sweep, Timing, from_dict, read_report
from equipoise.bench.run import ask, plan, run
from equipoise.bench.worker import alone, answer, sweep
from equipoise.cli import app
from equipoise.errors import EquipoiseError, MeasurementError

TINY = Case("tiny", layers=2, nodes=80, edges=320, features=6, width=8, rounds=1, epochs=2)


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One real measurement in a process of its own: synthetic-citation, 2 layers, 2 epochs in 2 rounds."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    result = bench("--case", "synthetic-2", "--quick", "--threads", "1", "--json", str(path))
    assert result.exit_code == 0, result.output
    return result.stdout, path


def test_a_real_run_prints_a_table(measured):
    text, _ = measured
    assert "Milliseconds an epoch, 1 thread" in text
    row = next(line for line in text.splitlines() if line.startswith("synthetic-2"))
    times = row.split()[1:]
    assert len(times) == 8  # ours, four of PyG's, ratio and its sign, floor
    assert all(float(time) > 0 for time in times if time != "×")


def test_a_real_run_leaves_json_that_can_be_read_again(measured):
    _, path = measured
    plain = json.loads(path.read_text())
    (timing,) = plain["timings"]
    assert {name: len(values) for name, values in timing["samples"].items()} == dict.fromkeys(
        ("equipoise", "PyG", "PyG looped", "PyG sparse", "PyG sparse looped"), 4
    )
    assert timing["floor"] > 0
    assert set(timing["rates"]) == {"product", "loop", "gather"}
    assert all(goal["reached"] is None for goal in plain["goals"])
    assert read_report(path).to_dict() == {name: part for name, part in plain.items() if name != "goals"}


def test_what_was_measured_can_be_shown_as_markdown(measured):
    result = bench("--read", str(measured[1]), "--markdown")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.startswith("|")]
    heads, rules, row = (line.strip("|").split("|") for line in lines[:3])
    assert [head.strip() for head in heads][:3] == ["case", "equipoise", "PyG"]
    assert len(heads) == len(rules) == len(row)


def test_sweeps_and_memory_are_measured_and_drawn(tmp_path):
    cases = [replace(TINY, name=str(edges), edges=edges) for edges in (100, 200, 400)]
    medians = sweep(cases)
    peaks = [alone(case, OURS) for case in cases[:1]] + [alone(case, PYG) for case in cases[:1]]
    assert all(step.milliseconds > 0 and step.resident > step.peak >= 0 for step in peaks)
    x = [case.edges for case in cases]
    edges = Sweep("edges", "ms", x, [row["equipoise"] for row in medians], [row["PyG looped"] for row in medians])
    memory = Sweep("edges", "bytes", x, [2.0**20, 2.0**21, 2.0**22], [2.0**24, 2.0**25, 2.0**26])
    report = Report(sweeps=[edges, memory])
    time_panel, depth_panel, _, memory_panel = draw_scaling(report).axes
    assert list(time_panel.lines[1].get_ydata()) == edges.ours
    assert list(memory_panel.lines[1].get_ydata()) == [1.0, 2.0, 4.0]
    assert "R² = 1.000" in memory_panel.get_legend().get_texts()[0].get_text()
    assert not depth_panel.axison

    (tmp_path / "bench.json").write_text(json.dumps(report.to_dict()))
    result = bench("--read", str(tmp_path / "bench.json"), "--figure", str(tmp_path / "bench.png"))
    assert result.exit_code == 0
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "memory over edges" in result.stdout


def test_a_report_survives_json():
    report = Report({"cores": "2"}, [Timing("a", 1, {"equipoise": [1.0]})], notes=[Note("b", "why", failed=True)])
    assert from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_each_thread_count_and_each_lonely_contestant_has_a_task():
    labels = [label for label, _ in plan(["cora-2", "large", "huge", "compile"], [1, 2])]
    assert labels[:2] == ["cora-2, 1 thread", "cora-2, 2 threads"]
    assert labels[2:] == ["large, equipoise", "large, PyG", "huge, equipoise", "compilation"]
    assert len(plan(["scaling"], [1])) == 5


def test_a_worker_answers_with_the_threads_it_was_given():
    before = torch.get_num_threads()
    try:
        timing = answer({"task": "epochs", "cases": [vars(TINY) | {"rivals": False}], "threads": 2})
    finally:
        torch.set_num_threads(before)
    assert timing["threads"] == 2
    assert timing["floor"] is None


def test_missing_data_are_left_out_and_failures_noted(monkeypatch, tmp_path):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))

    def broken(report):
        raise MeasurementError("it broke")

    heard = []
    report = run([*plan(["cora-2"], [1], quick=True), ("broken", broken)], heard.append)
    assert heard == ["cora-2, 1 thread", "broken"]
    missing, failed = report.notes
    assert not missing.failed
    assert "files of Cora are missing" in missing.reason
    assert failed == Note("broken", "it broke", failed=True)


def test_a_process_that_fails_is_a_named_error():
    with pytest.raises(MeasurementError, match="KeyError: 'no such task'"):
        ask("no such task")
    impossible = replace(TINY, width=7)  # odd, so that it has no balanced start
    with pytest.raises(MeasurementError, match="7 is odd"):
        ask("epochs", [impossible])


def test_a_noted_failure_exits_with_1(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(Report(notes=[Note("huge", "too little memory", failed=True)]).to_dict()))
    result = bench("--read", str(path))
    assert result.exit_code == 1
    assert "huge: failed: too little memory" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--case", "cora10"), "did you mean 'cora-10'"),
        (("--threads", "1;2"), "write --threads 1,2"),
        (("--threads", "0"), "write --threads 1,2"),
        (("--case", "cora-2", "--figure", "a.png"), "add --case scaling"),
        (("--json", "/no/such/folder/bench.json"), "there is no folder /no/such/folder"),
        (("--read", "no-such-file.json"), "no report can be read"),
        (("--explain", "no_such_module:model"), "there is no module"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(arguments, message):
    result = bench(*arguments)
    assert isinstance(result.exception, EquipoiseError)
    assert message in str(result.exception)


def test_explain_as_a_table_and_as_json(tmp_path, monkeypatch):
    source = "import torch, equipoise as eq\nfrom torch_geometric.nn import GAT\n"
    source += "def stack(): return eq.Stack('gatv2', [5, 4, 3]), torch.randn(6, 5), torch.randint(6, (2, 9))\n"
    source += "def stock(): return GAT(5, 4, 2, v2=True), torch.randn(6, 5), torch.randint(6, (2, 9))\n"
    source += "def dense(): return torch.nn.Linear(5, 4), torch.randn(6, 5)\n"
    (tmp_path / "my_nets.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert bench("--explain", "my_nets.py:stack").stdout.count("the kernels serve this call") == 2
    plain = json.loads(bench("--explain", "my_nets.py:stock", "--json", "-").stdout)
    assert [(layer["name"], layer["path"], layer["reason"]) for layer in plain] == [
        ("convs.0", "PyG", "stock layer: call fuse_ first"),
        ("convs.1", "PyG", "stock layer: call fuse_ first"),
    ]
    assert "Linear has no graph layer" in bench("--explain", "my_nets.py:dense").stdout
