"""``--figure`` of ``reproduce`` and ``report``, and ``report --html``."""

import json
import re

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import EquipoiseError
from equipoise.experiments.parser import load_experiment
from equipoise.experiments.store import Store
from tests.report.runs import cell_results

OWN = """
title = "Small"
kind = "figure"
draws = ["accuracy", "epochs"]

[grid]
dataset = "synthetic-citation"
depth = [2, 3]
init = ["xav", "bal-o"]
seed = 0
lr = 0.1
width = 4
epochs = 2
"""


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def store(tmp_path):
    """Runs of three experiments, without recordings."""
    path = tmp_path / "runs.sqlite"
    with Store(path) as opened:
        for name in ("inits", "dynamics-5", "sgd"):
            opened.merge(
                [result for cell in load_experiment(name).cells[:3] for result in cell_results(cell, [60, 61])]
            )
    return path


def test_reproduce_runs_and_draws(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(OWN)
    result = run("reproduce", own, "--store", tmp_path / "new.sqlite", "--jobs", 1, "--figure", tmp_path / "own.svg")
    assert result.exit_code == 0
    assert "4 of 4 runs" in result.stdout
    assert (tmp_path / "own.svg").read_text().startswith("<?xml")
    assert f"figure: {tmp_path / 'own.svg'}" in result.stderr


def test_runs_are_recorded_if_a_figure_needs_it(tmp_path):
    """The experiment has no figure; the page shows its recordings."""
    own, path, page = tmp_path / "own.toml", tmp_path / "new.sqlite", tmp_path / "page.html"
    own.write_text(OWN.replace('["accuracy", "epochs"]', '["relative-gradient"]'))
    assert run("reproduce", own, "--store", path, "--jobs", 1).exit_code == 0
    with Store(path, read_only=True) as opened:
        assert len(opened.recording_plans()) == 4
    assert run("report", own, "--store", path, "--html", page).exit_code == 0
    (data,) = re.findall(r'id="data">(.*?)</script>', page.read_text())
    assert len(json.loads(data)["layers"]) == 4
    listed = run("reproduce", own, "--store", path, "--dry-run")
    assert "0 of 4 runs to do" in listed.stdout


def test_runs_without_a_recording_are_repeated(store):
    listed = run("reproduce", "dynamics-5", "--seeds", 2, "--store", store, "--dry-run")
    assert "2 of 4 runs to do" in listed.stdout, "those of seed 0, which the figure draws"


@pytest.mark.parametrize("order", [("inits", "--figure"), ("--figure", "inits")])
def test_without_a_file_writes_three_formats_next_to_the_store(store, order):
    result = run("report", *order, "--store", store)
    assert result.exit_code == 0
    files = [store.with_name(f"inits{suffix}") for suffix in (".png", ".svg", ".pdf")]
    assert result.stdout.split() == list(map(str, files))
    assert all(file.stat().st_size > 1000 for file in files)


def test_without_a_name_draws_all_possible_figures(store):
    result = run("report", "--store", store, "--figure")
    assert result.exit_code == 0
    assert str(store.with_name("inits.png")) in result.stdout
    assert "dynamics-5" not in result.stdout
    assert "not drawn: no run of dynamics-5" in result.stderr


def test_page_and_figure_together(store, tmp_path):
    result = run("report", "inits", "sgd", "--store", store, "--html")
    assert result.stdout.split() == [str(tmp_path / "equipoise.html")]
    text = (tmp_path / "equipoise.html").read_text()
    assert "Eight initialisations of GAT" in text
    assert "data:image/png;base64," in text
    both = run("report", "inits", "--store", store, "--html", tmp_path / "a.html", "--figure", tmp_path / "a.pdf")
    assert both.stdout.split() == [str(tmp_path / "a.pdf"), str(tmp_path / "a.html")]


def test_page_shows_all_experiments_with_runs(store, tmp_path):
    assert run("report", "--store", store, "--html", tmp_path / "a.html").exit_code == 0
    text = (tmp_path / "a.html").read_text()
    assert all(f'<span class="name">{name}</span>' in text for name in ("inits", "dynamics-5", "sgd"))
    assert "Not drawn: no run of dynamics-5 in the store has a recording" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce", "gat-v1", "--figure"), "there is no figure of gat-v1"),
        (("reproduce", "inits", "adam", "--figure", "a.png"), "several figures cannot be written to one file"),
        (("reproduce", "inits", "--figure", "a.gif"), "choose one of: .png, .svg, .pdf"),
        (("report", "inits", "--figure", "a.pgn"), "did you mean '.png'"),
        (("report", "dynamics-5", "--figure"), "equipoise reproduce dynamics-5 --figure"),
        (("report", "inits", "--html", "no/such/folder.html"), "there is no folder"),
        (("report", "inits", "--html", "page.pdf"), "choose one of: .html, .htm"),
        (("report", "inits", "--html", "tables/"), "choose one of: .html, .htm"),
        (("report", "inits", "--figure", "tables/inits"), "choose one of: .png, .svg, .pdf"),
    ],
)
def test_errors_name_the_mistake_before_any_run(store, arguments, message):
    result = run(*arguments, "--store", store)
    assert isinstance(result.exception, EquipoiseError)
    assert message in str(result.exception)
