"""``--figure`` of ``reproduce`` and ``report``, and ``report --html``, as they are typed."""

import json
import re

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import EquipoiseError
from equipoise.experiments.files import load
from equipoise.experiments.store import Store
from tests.report.runs import runs_of

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
    """Runs of a figure of results, and of one whose recordings are not there."""
    path = tmp_path / "runs.sqlite"
    with Store(path) as kept:
        for name in ("inits", "dynamics-5", "sgd"):
            kept.merge([result for cell in load(name).cells[:3] for result in runs_of(cell, [60, 61])])
    return path


def test_from_runs_to_a_picture(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(OWN)
    result = run("reproduce", own, "--store", tmp_path / "new.sqlite", "--jobs", 1, "--figure", tmp_path / "own.svg")
    assert result.exit_code == 0
    assert "4 of 4 runs" in result.stdout
    assert (tmp_path / "own.svg").read_text().startswith("<?xml")
    assert f"drawn: {tmp_path / 'own.svg'}" in result.stderr


def test_recordings_are_made_where_a_figure_needs_them(tmp_path):
    """An own file of that kind has no drawing, and its recordings are for the page."""
    own, path, page = tmp_path / "own.toml", tmp_path / "new.sqlite", tmp_path / "page.html"
    own.write_text(OWN.replace('["accuracy", "epochs"]', '["relative-gradient"]'))
    assert run("reproduce", own, "--store", path, "--jobs", 1).exit_code == 0
    with Store(path, create=False) as kept:
        assert len(kept.recorded()) == 4
    assert run("report", own, "--store", path, "--html", page).exit_code == 0
    (data,) = re.findall(r'id="data">(.*?)</script>', page.read_text())
    assert len(json.loads(data)["layers"]) == 4
    listed = run("reproduce", own, "--store", path, "--dry-run")
    assert "0 of 4 runs would be done" in listed.stdout


def test_what_is_not_recorded_is_to_be_done_again(store):
    listed = run("reproduce", "dynamics-5", "--store", store, "--dry-run")
    assert "2 of 2 runs would be done" in listed.stdout


@pytest.mark.parametrize("order", [("inits", "--figure"), ("--figure", "inits")])
def test_without_a_file_all_three_beside_the_store(store, order):
    result = run("report", *order, "--store", store)
    assert result.exit_code == 0
    drawn = [store.with_name(f"inits{suffix}") for suffix in (".png", ".svg", ".pdf")]
    assert result.stdout.split() == list(map(str, drawn))
    assert all(file.stat().st_size > 1000 for file in drawn)


def test_without_a_name_all_that_can_be_drawn(store):
    result = run("report", "--store", store, "--figure")
    assert result.exit_code == 0
    assert str(store.with_name("inits.png")) in result.stdout
    assert "dynamics-5" not in result.stdout
    assert "not drawn: no run of dynamics-5" in result.stderr


def test_a_page_and_a_picture_at_once(store, tmp_path):
    result = run("report", "inits", "sgd", "--store", store, "--html")
    assert result.stdout.split() == [str(tmp_path / "equipoise.html")]
    text = (tmp_path / "equipoise.html").read_text()
    assert "Eight starts of GAT" in text
    assert "data:image/png;base64," in text
    both = run("report", "inits", "--store", store, "--html", tmp_path / "a.html", "--figure", tmp_path / "a.pdf")
    assert both.stdout.split() == [str(tmp_path / "a.pdf"), str(tmp_path / "a.html")]


def test_all_that_have_runs_are_on_the_page(store, tmp_path):
    assert run("report", "--store", store, "--html", tmp_path / "a.html").exit_code == 0
    text = (tmp_path / "a.html").read_text()
    assert all(f'<span class="name">{name}</span>' in text for name in ("inits", "dynamics-5", "sgd"))
    assert "Not drawn: no run of dynamics-5 is there to be drawn, or none of them was recorded" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce", "sgd", "--figure"), "there is no figure of sgd"),
        (("reproduce", "inits", "adam", "--figure", "a.png"), "several figures do not fit in one file"),
        (("reproduce", "inits", "--figure", "a.gif"), "choose one of: .png, .svg, .pdf"),
        (("report", "inits", "--figure", "a.pgn"), "did you mean '.png'"),
        (("report", "dynamics-5", "--figure"), "equipoise reproduce dynamics-5 --figure"),
        (("report", "inits", "--html", "no/such/folder.html"), "the page cannot be written"),
        (("report", "inits", "--html", "page.pdf"), "a page is a .html"),
    ],
)
def test_mistakes_are_named_before_any_run(store, arguments, message):
    result = run(*arguments, "--store", store)
    assert isinstance(result.exception, EquipoiseError)
    assert message in str(result.exception)
