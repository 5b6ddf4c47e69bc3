import json
import re
from html.parser import HTMLParser

import pytest

from equipoise.errors import SpecError
from equipoise.experiments.experiment import Cell
from equipoise.experiments.parser import load_experiment
from equipoise.experiments.store import Store
from equipoise.report.page import reproduce_command, write_page
from tests.report.example_page import IMAGE_TAG, SCRIPT_TAG, write_example_page


class PageParser(HTMLParser):
    """Collects tags with their attributes, the text, and the embedded JSON."""

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
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def html(folder):
    return write_example_page(folder).read_text()


@pytest.fixture(scope="module")
def page(html):
    return PageParser(html)


def test_markup_in_texts_is_escaped(html, page):
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert {attributes["src"][:22] for tag, attributes in page.tags if tag == "img"} == {"data:image/png;base64,"}
    assert "<script>alert" not in html
    assert page.text.count(SCRIPT_TAG) >= 5
    assert "{{ 7 * 7 }}" in page.text


def test_page_needs_no_network(html, page):
    for _, attributes in page.tags:
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("src", "data:").startswith("data:")
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html), "only references within the page"
    (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "script-src 'sha256-" in policy


def test_tables_and_claims(page):
    assert "25.00 ± 1.27 2/2 300 ± 0 25.48 ± 18.13 −0.48 overlap" in page.text
    assert "holds At L ≥ 10, bal-o is better" in page.text


def test_experiment_without_runs_comes_last(page):
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert [link for link in links if "experiment" in link][:3] == ["#experiment-1", "#experiment-2", "#experiment-3"]
    assert page.text.index("dynamics-5") < page.text.index("inits")


def test_page_begins_with_the_number_of_claims_by_verdict(page):
    lacking = len(load_experiment("inits").claims)
    assert f"10 claims 3 hold 0 hold but for noise 0 contradicted 7 open ({lacking} for lack of runs)" in page.text
    before_tables = page.text[: page.text.index("Overview")]
    assert before_tables.index("10 claims") < before_tables.index("against depth") < before_tables.index("by verdict")


def test_overview_of_claims_is_sorted_by_verdict_and_links_to_the_comparisons(page):
    rows = [row["href"] for tag, row in page.tags if tag == "a" and row["href"].startswith("#claim-")]
    details = [row["id"] for tag, row in page.tags if tag == "li" and row.get("id", "").startswith("claim-")]
    assert sorted(link[1:] for link in rows) == sorted(details)
    assert len(details) == 10
    overview = page.text[page.text.index("Claims by verdict") : page.text.index("Overview")]
    verdicts = re.findall(r"\b(holds|contradicted|open) (?=[A-Zabm<])", overview[overview.index("verdict claim") :])
    assert verdicts == sorted(verdicts, key=("holds", "contradicted", "open").index)
    assert "holds At L ≥ 10, bal-o is better" in overview
    assert "2 of 2 agree" in overview
    assert "28 pending" in overview


def test_tables_are_open_and_comparisons_one_click_away(page):
    details = [attributes for tag, attributes in page.tags if tag == "details"]
    assert {attributes["class"] for attributes in details} == {"comparisons"}
    assert "at better worse lead (points) finding paper cora L = 10 79.0 ± 1.3 25.0 ± 1.3 +54.0 agrees" in page.text


def test_every_number_has_its_command(page, folder):
    store = f"--store '{folder / 'runs & more.sqlite'}'"
    commands = [attributes["data-command"] for _, attributes in page.tags if "data-command" in attributes]
    assert f"equipoise reproduce '{SCRIPT_TAG}.toml' --dataset cora --depth 10 --init bal-o {store}" in commands
    assert f"equipoise reproduce dynamics-5 --init xav {store}" in commands
    assert len(commands) == (1 + 8) + (1 + 2) + (1 + 56) + 1
    assert f"equipoise report inits '{SCRIPT_TAG}.toml' dynamics-5 --html {store}" in commands


def test_missing_figure_is_explained(page):
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 1
    assert "Not drawn: no run of inits is in the store" in page.text


def test_chart_data_are_embedded(page):
    data = json.loads(page.data)
    assert [entry["name"] for entry in data["experiments"]] == ["dynamics-5"], "made-up results have no curves"
    first, second = data["runs"]
    assert first["epochs"] == [1, 2, 3, 4, 5, 6] == second["epochs"]
    assert list(data["measures"]) == ["loss", "val_accuracy", "test_accuracy"]
    assert set(first["curves"]) == set(data["measures"])
    grid = data["layers"][0]["quantities"]["gradient/features"]
    assert grid["layers"] == [1, 2, 3, 4, 5]
    assert grid["epochs"] == [1, 2, 3, 4, 5, 6]
    assert all(len(row) == 6 and all(value > 0 for value in row) for row in grid["values"])
    assert next(iter(data["quantities"])) == "gradient/features"


def test_machines_and_versions_are_listed(page):
    assert re.search(r"2 Linux|2 Darwin|2 Windows", page.text)
    assert f"16 {IMAGE_TAG}" in page.text
    assert "Page created with equipoise" in page.text


def test_commands_are_as_narrow_as_the_options_allow():
    widths = load_experiment("cora-widths")
    cell = next(cell for cell in widths.cells if cell.coordinates == (20, 512, "bal-x"))
    assert reproduce_command(widths, cell) == "equipoise reproduce cora-widths --depth 20 --init bal-x"
    assert reproduce_command(load_experiment("datasets")) == "equipoise report datasets"
    assert reproduce_command(widths, Cell((), ())) == reproduce_command(widths) == "equipoise reproduce cora-widths"


def test_unwritable_page_is_an_error(tmp_path):
    with Store(tmp_path / "runs.sqlite") as store, pytest.raises(SpecError, match="the page cannot be written"):
        write_page(tmp_path / "no" / "page.html", [], store)
