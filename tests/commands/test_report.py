import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import EquipoiseError
from equipoise.experiments.parser import load_experiment
from equipoise.experiments.store import Store
from tests.real_data import require
from tests.report.runs import COMPLETE as NUMBERS
from tests.report.runs import SMALL, cell_results, make_results, small_experiment


def run(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def store(tmp_path):
    """Two cells of a table of the paper, run for 200 epochs, and all runs of a small experiment."""
    path = tmp_path / "runs.sqlite"
    cells = load_experiment("sgd").subset(dataset=["texas"], depth=[2], epochs=200).cells
    own_experiment = small_experiment()
    with Store(path) as opened:
        opened.merge([result for cell in cells[:2] for result in cell_results(cell, [60, 61, 62])])
        opened.merge(make_results(own_experiment, NUMBERS))
    (tmp_path / "small.toml").write_text(SMALL)
    return path


def test_prints_available_results(store):
    result = run("sgd", "--store", store)
    assert result.exit_code == 0
    assert "6 of 675 runs, 133 of 135 cells missing, of at most 200 epochs instead of 5000" in result.stdout
    assert "| 61.00 ± 2.48 | 3/5" in result.stdout
    assert "**open**: At every L ≥ 10, bal-o" in result.stdout


def test_without_a_name_reports_experiments_with_runs(store):
    result = run("--store", store)
    assert [line.split(":")[0] for line in result.stdout.splitlines() if line.startswith("## ")] == ["## sgd"]


def test_epochs_select_the_runs(store):
    assert "0 of 675 runs" in run("sgd", "--store", store, "--epochs", "300").stdout


def test_own_experiment_file(store):
    result = run(store.with_name("small.toml"), "--store", store)
    assert "16 of 16 runs, no cell missing" in result.stdout
    assert "**holds**: At L ≥ 10, bal-o is better" in result.stdout


def test_writes_files(store, tmp_path):
    result = run("sgd", "gcn", "--store", store, "--out", tmp_path / "new" / "tables")
    assert result.exit_code == 0
    names = {file.name for file in (tmp_path / "new" / "tables").iterdir()}
    suffixes = (".md", ".tex", ".csv", "-claims.csv")
    assert names == {f"{name}{suffix}" for name in ("sgd", "gcn") for suffix in suffixes}
    assert len((tmp_path / "new" / "tables" / "sgd.csv").read_text().splitlines()) == 1 + 135


def test_one_format(store):
    assert run("sgd", "--store", store, "--format", "csv").stdout.startswith("dataset,depth,init,status,accuracy")
    assert run("sgd", "--store", store, "--format", "latex").stdout.startswith("% \\usepackage{booktabs, longtable}")


def test_datasets_need_no_store(monkeypatch):
    names = load_experiment("datasets").axes["dataset"]
    monkeypatch.setenv("EQUIPOISE_DATA", str(require(*names)))
    result = run("datasets", "--store", "/no/such/store.sqlite")
    assert result.exit_code == 0
    assert "63 of 63 numbers are equal" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sdg",), "did you mean 'sgd'"),
        (("sgd", "--format", "html"), "unknown format 'html'"),
        (("sgd", "gcn", "--format", "csv"), "one CSV table"),
        (("sgd", "--out", "{store}/below/a/file"), "cannot be written"),
        (("sgd", "--html", "--out", "page.html"), "--out does not go with --html"),
        (("sgd", "--figure", "--format", "csv"), "--format does not go with --figure"),
    ],
)
def test_errors_name_the_mistake(store, arguments, message):
    result = run(*(argument.format(store=store) for argument in arguments), "--store", store)
    assert isinstance(result.exception, EquipoiseError)
    assert message in str(result.exception)


def test_missing_store_is_not_created(tmp_path):
    result = run("sgd", "--store", tmp_path / "absent.sqlite")
    assert "the store does not exist" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_store_without_runs_of_the_paper(tmp_path):
    with Store(tmp_path / "empty.sqlite"):
        pass
    assert "no runs of the paper" in str(run("--store", tmp_path / "empty.sqlite").exception)
