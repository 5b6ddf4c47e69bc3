import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import EquipoiseError
from equipoise.experiments.files import load
from equipoise.experiments.store import Store
from tests.real_data import require
from tests.report.runs import COMPLETE as NUMBERS
from tests.report.runs import SMALL, results, runs_of, small


def run(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def store(tmp_path):
    """Two cells of the big table, run for 200 epochs, and a small table of one's own."""
    path = tmp_path / "runs.sqlite"
    cells = load("sgd").narrowed(dataset=["texas"], depth=[2], epochs=200).cells
    own = small()
    with Store(path) as kept:
        kept.merge([result for cell in cells[:2] for result in runs_of(cell, [60, 61, 62])])
        kept.merge(results(own, NUMBERS))
    (tmp_path / "small.toml").write_text(SMALL)
    return path


def test_prints_a_target_with_what_is_there(store):
    result = run("sgd", "--store", store)
    assert result.exit_code == 0
    assert "6 of 675 runs, 133 of 135 cells missing, of at most 200 epochs instead of 5000" in result.stdout
    assert "| 61.00 ± 2.48 | 3/5" in result.stdout
    assert "**not enough runs**: At every L ≥ 10, Bal_O" in result.stdout


def test_without_a_name_it_is_what_has_runs(store):
    result = run("--store", store)
    assert [line.split(":")[0] for line in result.stdout.splitlines() if line.startswith("## ")] == ["## sgd"]


def test_epochs_can_be_asked_for(store):
    assert "0 of 675 runs" in run("sgd", "--store", store, "--epochs", "300").stdout


def test_ones_own_file(store):
    result = run(store.with_name("small.toml"), "--store", store)
    assert "16 of 16 runs, no cell missing" in result.stdout
    assert "**holds**: At L ≥ 10, bal-o is better" in result.stdout


def test_writes_files(store, tmp_path):
    result = run("sgd", "gcn", "--store", store, "--out", tmp_path / "new" / "tables")
    assert result.exit_code == 0
    names = {file.name for file in (tmp_path / "new" / "tables").iterdir()}
    suffixes = (".md", ".tex", ".csv", "-claims.csv")
    assert names == {f"{target}{suffix}" for target in ("sgd", "gcn") for suffix in suffixes}
    assert len((tmp_path / "new" / "tables" / "sgd.csv").read_text().splitlines()) == 1 + 135


def test_one_format(store):
    assert run("sgd", "--store", store, "--format", "csv").stdout.startswith("dataset,depth,init,status,accuracy")
    assert run("sgd", "--store", store, "--format", "latex").stdout.startswith("% \\usepackage{booktabs, longtable}")


def test_data_sets_need_no_store(monkeypatch):
    names = load("datasets").axes["dataset"]
    monkeypatch.setenv("EQUIPOISE_DATA", str(require(*names)))
    result = run("datasets", "--store", "/no/such/store.sqlite")
    assert result.exit_code == 0
    assert "63 of 63 numbers are equal" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sdg",), "did you mean 'sgd'"),
        (("sgd", "--format", "html"), "unknown format 'html'"),
        (("sgd", "gcn", "--format", "csv"), "do not fit in one CSV"),
        (("sgd", "--out", "{store}/below/a/file"), "the report cannot be written"),
    ],
)
def test_mistakes_are_named(store, arguments, message):
    result = run(*(argument.format(store=store) for argument in arguments), "--store", store)
    assert isinstance(result.exception, EquipoiseError)
    assert message in str(result.exception)


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    result = run("sgd", "--store", tmp_path / "absent.sqlite")
    assert "there is no store here" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_a_run_of_the_paper(tmp_path):
    with Store(tmp_path / "empty.sqlite"):
        pass
    assert "no run of the paper" in str(run("--store", tmp_path / "empty.sqlite").exception)
