import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from equipoise.bench.cases import Case
from equipoise.bench.plot import draw_scaling
from equipoise.bench.report import BenchReport, ScalingCurve, SkippedTask, read_report
from equipoise.bench.run import isa_environment, plan_tasks, run_tasks, run_worker
from equipoise.cli import app
from equipoise.errors import ChoiceError, EquipoiseError, MeasurementError

TINY = Case("tiny", layers=2, nodes=80, edges=320, features=6, width=8, rounds=1, epochs=2)


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Output and JSON file of one real measurement: synthetic-citation, 2 layers, 2 epochs in 2 rounds."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    result = bench("--case", "synthetic-2", "--quick", "--threads", "1", "--json", str(path))
    assert result.exit_code == 0, result.output
    return result.stdout, path


def test_measurement_prints_a_table(measured):
    text, _ = measured
    assert "Milliseconds per epoch, 1 thread" in text
    row = next(line for line in text.splitlines() if line.startswith("synthetic-2"))
    values = row.split()[1:]
    assert len(values) == 9  # equipoise, four PyG variants, empty network, speed-up and its sign, roofline
    assert all(float(value) > 0 for value in values if value != "×")


def test_measurement_writes_json_that_can_be_read(measured):
    _, path = measured
    plain = json.loads(path.read_text())
    (timing,) = plain["timings"]
    assert {name: len(values) for name, values in timing["samples"].items()} == dict.fromkeys(
        ("equipoise", "PyG", "PyG looped", "PyG sparse", "PyG sparse looped", "empty network"), 4
    )
    assert timing["roofline"] > 0
    assert set(timing["throughput"]) == {"product", "blas", "loop", "gather"}
    assert read_report(path).to_dict() == plain


def test_report_as_markdown(measured):
    result = bench("--read", str(measured[1]), "--markdown")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.startswith("|")]
    headers, rules, row = (line.strip("|").split("|") for line in lines[:3])
    assert [header.strip() for header in headers][:3] == ["case", "equipoise", "PyG"]
    assert len(headers) == len(rules) == len(row)


def test_scaling_is_drawn_and_fitted(tmp_path):
    x = [100, 200, 400]
    time = ScalingCurve("edges", "ms", x, [1.0, 1.5, 2.5], [10.0, 20.0, 40.0])
    memory = ScalingCurve("edges", "bytes", x, [2.0**20, 2.0**21, 2.0**22], [2.0**24, 2.0**25, 2.0**26])
    report = BenchReport(scaling=[time, memory])
    time_panel, depth_panel, _, memory_panel = draw_scaling(report).axes
    assert list(time_panel.lines[1].get_ydata()) == time.equipoise
    assert list(memory_panel.lines[1].get_ydata()) == [1.0, 2.0, 4.0]
    assert "R² = 1.000" in memory_panel.get_legend().get_texts()[0].get_text()
    assert not depth_panel.axison

    (tmp_path / "bench.json").write_text(json.dumps(report.to_dict()))
    result = bench("--read", str(tmp_path / "bench.json"), "--figure", str(tmp_path / "bench.png"))
    assert result.exit_code == 0
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "memory over edges" in result.stdout


def test_one_task_per_thread_count_and_per_isolated_implementation():
    labels = [label for label, _ in plan_tasks(["cora-2", "large", "huge", "compile"], [1, 2])]
    assert labels[:2] == ["cora-2, 1 thread", "cora-2, 2 threads"]
    assert labels[2:] == ["large, equipoise", "large, PyG", "huge, equipoise", "compilation"]
    assert len(plan_tasks(["scaling"], [1])) == 5


def test_missing_data_are_skipped_and_failures_recorded(monkeypatch, tmp_path):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))

    def broken(report):
        raise MeasurementError("it broke")

    labels = []
    report = run_tasks([*plan_tasks(["cora-2"], [1], quick=True), ("broken", broken)], labels.append)
    assert labels == ["cora-2, 1 thread", "broken"]
    missing, failed = report.skipped
    assert not missing.failed
    assert "Cora" in missing.reason
    assert failed == SkippedTask("broken", "it broke", failed=True)


def test_isa_restricts_the_kernels_to_avx2():
    environment = isa_environment("avx2")
    assert "-avx512f" in environment["NUMBA_CPU_FEATURES"].split(",")
    assert "+avx2" in environment["NUMBA_CPU_FEATURES"].split(",")
    assert isa_environment("native") == {}
    script = "from equipoise.kernels import simd; print(simd.has_avx512(), len(simd.vector_blocks(64, 'f4')))"
    result = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "2"]
    with pytest.raises(ChoiceError, match="avx2"):
        isa_environment("avx")


def test_failure_of_a_worker_is_an_error():
    with pytest.raises(MeasurementError, match="KeyError: 'no such task'"):
        run_worker("no such task")
    odd = replace(TINY, width=7)  # balanced initialisation needs an even width
    with pytest.raises(MeasurementError, match="odd"):
        run_worker("epochs", [odd])


def test_recorded_failure_exits_with_1(tmp_path):
    path = tmp_path / "bench.json"
    report = BenchReport(skipped=[SkippedTask("huge", "too little memory", failed=True)])
    path.write_text(json.dumps(report.to_dict()))
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
        (("--read", "no-such-file.json"), "cannot read a benchmark report"),
        (("--explain", "no_such_module:model"), "there is no module"),
    ],
)
def test_errors_name_the_mistake_before_anything_is_measured(arguments, message):
    result = bench(*arguments)
    assert isinstance(result.exception, EquipoiseError)
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("--explain", "nets.py:model", "--quick"), "--quick"),
        (("--explain", "nets.py:model", "--figure", "a.png"), "--figure"),
        (("--read", "bench.json", "--case", "cora-2"), "--case"),
    ],
)
def test_options_without_effect_are_refused(arguments, option):
    result = bench(*arguments)
    assert result.exit_code == 2
    assert f"Invalid value for {option}" in result.output


def test_explain_as_table_and_as_json(tmp_path, monkeypatch):
    source = "import torch, equipoise as eq\nfrom torch_geometric.nn import GAT\n"
    source += "def stack(): return eq.Stack('gatv2', [5, 4, 3]), torch.randn(6, 5), torch.randint(6, (2, 9))\n"
    source += "def stock(): return GAT(5, 4, 2, v2=True), torch.randn(6, 5), torch.randint(6, (2, 9))\n"
    source += "def dense(): return torch.nn.Linear(5, 4), torch.randn(6, 5)\n"
    (tmp_path / "my_nets.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert bench("--explain", "my_nets.py:stack").stdout.count("fused") >= 2
    plain = json.loads(bench("--explain", "my_nets.py:stock", "--json", "-").stdout)
    assert [(layer["name"], layer["path"], layer["reason"]) for layer in plain] == [
        ("convs.0", "PyG", "stock layer: call fuse_ first"),
        ("convs.1", "PyG", "stock layer: call fuse_ first"),
    ]
    assert "Linear has no graph layer" in bench("--explain", "my_nets.py:dense").stdout
