import json
import re
from html.parser import HTMLParser

import pytest

from equipoise.errors import SpecError
from equipoise.experiments.experiment import Cell
from equipoise.experiments.files import load
from equipoise.experiments.store import Store
from equipoise.report.page import command, write_page
from tests.report.pages import HOSTILE, written


class Reader(HTMLParser):
    """Every tag with its attributes, and the text in between."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.data = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, text):
        if self.tags[-1:] and self.tags[-1][1].get("id") == "data":
            self.data += text
        else:
            self.texts.append(text)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return written(tmp_path_factory.mktemp("page")).read_text()


@pytest.fixture(scope="module")
def page(text):
    return Reader(text)


def test_names_are_text_and_nothing_else(text, page):
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert {attributes["src"][:22] for tag, attributes in page.tags if tag == "img"} == {"data:image/png;base64,"}
    assert "<script>alert" not in text
    assert page.text.count(HOSTILE) >= 5, "it is shown as it is written"
    assert "{{ 7 * 7 }}" in page.text


def test_nothing_is_fetched(text, page):
    for _, attributes in page.tags:
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("src", "data:").startswith("data:")
    assert "@import" not in text
    assert "url(" not in text
    (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "script-src 'sha256-" in policy


def test_ours_stand_beside_the_papers(page):
    assert "25.00 ± 63.53 2/2 300 ± 0 25.48 ± 18.13 −0.48 overlap" in page.text
    assert "holds At L ≥ 10, bal-o is better" in page.text


def test_what_has_no_runs_comes_last_and_is_folded(page):
    order = [attributes["href"] for tag, attributes in page.tags if tag == "a"][:3]
    assert order == ["#target-1", "#target-2", "#target-3"]
    assert page.text.index("dynamics-5") < page.text.index("inits")
    folds = ["open" in attributes for tag, attributes in page.tags if tag == "details"][:3]
    assert folds == [True, True, False]


def test_every_number_has_its_command(page):
    commands = [attributes["data-command"] for _, attributes in page.tags if "data-command" in attributes]
    assert f"equipoise reproduce '{HOSTILE}.toml' --dataset cora --depth 10 --init bal-o" in commands
    assert "equipoise reproduce dynamics-5 --init xav" in commands
    assert len(commands) == (1 + 8) + (1 + 2) + (1 + 56) + 1
    assert "equipoise report --html --store 'runs & more.sqlite'" in commands


def test_figures_are_drawn_or_it_is_said_why(page):
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 1
    assert "Not drawn: no run of inits is there to be drawn" in page.text


def test_numbers_to_explore(page):
    data = json.loads(page.data)
    assert [target["name"] for target in data["targets"]] == ["dynamics-5"], "made-up runs have no curves"
    first, second = data["runs"]
    assert first["epochs"] == [1, 2, 3, 4, 5, 6] == second["epochs"]
    assert list(data["measures"]) == ["loss", "val_accuracy", "test_accuracy"]
    assert set(first["curves"]) == set(data["measures"])
    grid = data["layers"][0]["quantities"]["gradient/features"]
    assert grid["layers"] == [1, 2, 3, 4, 5]
    assert grid["epochs"] == [1, 2, 3, 4, 5, 6]
    assert all(len(row) == 6 and all(value > 0 for value in row) for row in grid["values"])
    assert next(iter(data["quantities"])) == "gradient/features"


def test_where_the_runs_come_from(page):
    assert re.search(r"2 Linux|2 Darwin|2 Windows", page.text)
    assert "16 <img src=x onerror=alert(2)>" in page.text
    assert "This page was made with equipoise" in page.text


def test_commands_are_as_narrow_as_they_can_be():
    widths = load("cora-widths")
    cell = next(cell for cell in widths.cells if cell.at == (20, 512, "bal-x"))
    assert command(widths, cell) == "equipoise reproduce cora-widths --depth 20 --init bal-x"
    assert command(load("datasets")) == "equipoise report datasets"
    assert command(widths, Cell((), ())) == command(widths) == "equipoise reproduce cora-widths"


def test_a_page_that_cannot_be_written(tmp_path):
    with Store(tmp_path / "runs.sqlite") as store, pytest.raises(SpecError, match="the page cannot be written"):
        write_page(tmp_path / "no" / "page.html", [], store)
