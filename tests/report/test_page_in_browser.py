"""The page as a reader has it: a real browser, a local file, no network."""

import pytest

from tests.report.browser import browser
from tests.report.pages import written

CHANGE = """
const control = document.getElementById(arguments[0]);
if (control.type === "checkbox") control.checked = arguments[1]; else control.value = arguments[1];
control.dispatchEvent(new Event(control.type === "search" ? "input" : "change"));
"""
POINT = """
const target = document.querySelector(arguments[0]), box = target.getBoundingClientRect();
const place = {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true};
target.dispatchEvent(new PointerEvent("pointermove", place));
const tip = document.getElementById("tip");
return tip.hidden ? null : tip.textContent;
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def file(folder):
    return written(folder)


@pytest.fixture(scope="module")
def window(folder):
    with browser(folder) as opened:
        yield opened


@pytest.fixture
def page(window, file):
    """The page, fresh; whatever a test does to it, the console has nothing to say."""
    window.open(file)
    yield window
    assert window.complaints() == []


def count(page, selector):
    return page.run("return document.querySelectorAll(arguments[0]).length", selector)


def test_opens_without_a_word(page, tmp_path):
    assert page.run("return document.title") == "equipoise: runs & more.sqlite"
    assert count(page, "section.target") == 3
    assert page.run("return document.querySelector('figure img').naturalWidth") > 500
    assert page.picture(tmp_path / "desktop.png").stat().st_size > 20_000


def test_no_script_but_its_own(window, file):
    window.open(file)
    window.run("const s = document.createElement('script'); s.textContent = 'window.harm = 1'; document.body.append(s)")
    assert window.run("return window.harm === undefined")
    assert any("Content Security Policy" in message for message in window.complaints())


def test_curves_of_chosen_runs(page):
    assert count(page, "#curve-chart path") == 2
    before = page.run("return document.querySelector('#curve-chart path').getAttribute('d')")
    page.run(CHANGE, "curve-measure", "test_accuracy")
    assert page.run("return document.querySelector('#curve-chart .title').textContent") == "test accuracy (%)"
    assert page.run("return document.querySelector('#curve-chart path').getAttribute('d')") != before
    page.run("document.querySelector('#curve-runs input').click()")
    assert count(page, "#curve-chart path") == 1
    page.run("document.getElementById('curve-none').click()")
    assert "choose a run" in page.run("return document.getElementById('curve-chart').textContent")
    page.run("document.querySelectorAll('#curve-runs input')[1].click()")
    page.run(CHANGE, "curve-log", True)
    assert count(page, "#curve-chart path") == 1


def test_runs_are_found_by_words(page):
    page.run(CHANGE, "curve-find", "BAL-O l=5")
    assert count(page, "#curve-runs input") == 1
    page.run(CHANGE, "curve-find", "nonsense")
    assert "no run" in page.run("return document.getElementById('curve-runs').textContent")


def test_pointing_at_a_curve_tells_its_values(page):
    told = page.run(POINT, "#curve-chart svg")
    data = page.run("return JSON.parse(document.getElementById('data').textContent).runs")
    assert len(told.splitlines()) == 2
    value, rest = told.splitlines()[0].split("  ")
    epoch = int(rest.split("epoch ")[1].rstrip(")"))
    assert float(value) == data[0]["curves"]["loss"][data[0]["epochs"].index(epoch)]
    page.run("document.querySelector('#curve-chart svg').dispatchEvent(new PointerEvent('pointerleave'))")
    assert page.run("return document.getElementById('tip').hidden")


def test_layers_and_epochs(page):
    assert count(page, "#layer-chart-first rect") == count(page, "#layer-chart-second rect") == 5 * 6
    told = page.run(POINT, "#layer-chart-second rect[data-row='3'][data-column='4']")
    layers = page.run("return JSON.parse(document.getElementById('data').textContent).layers")
    assert told.endswith("layer 4, epoch 5")
    assert float(told.split()[0]) == pytest.approx(
        layers[1]["quantities"]["gradient/features"]["values"][3][4], rel=5e-3
    )
    colour = "return document.querySelector('#layer-chart-first rect').getAttribute('fill')"
    before = page.run(colour)
    page.run(CHANGE, "layer-log", False)
    assert page.run(colour) != before
    page.run(CHANGE, "layer-quantity", "representation/mad")
    assert page.run("return document.getElementById('layer-log').checked")
    page.run(CHANGE, "layer-second", "")
    assert count(page, "#layer-chart-second rect") == 0
    assert count(page, "#layer-chart-first rect") == 5 * 6


def test_commands_are_copied(page):
    page.run("""
        navigator.clipboard.writeText = async (text) => { window.copied = text; };
        document.querySelector('#target-2 .copy').click();
    """)
    assert page.run("return window.copied") == "equipoise reproduce dynamics-5"
    page.run("navigator.clipboard.writeText = async () => { throw new Error('no'); }")
    page.run("""
        document.execCommand = () => { window.fallen_back = document.activeElement.value; };
        document.querySelector('#target-2 td .copy').click();
    """)
    assert page.run("return window.fallen_back") == "equipoise reproduce dynamics-5 --init xav"


def test_fits_a_phone_in_the_dark(window, file, tmp_path):
    window.open(file, width=360, height=740, prefers_color_scheme="dark")
    assert window.run("return document.documentElement.scrollWidth") == 360
    paper, ink = window.run("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
    assert sum(map(int, paper[4:-1].split(","))) < 150 < sum(map(int, ink[4:-1].split(",")))
    assert window.run("return document.querySelector('#curve-chart svg').getBoundingClientRect().right") <= 360
    assert window.picture(tmp_path / "phone.png", whole=True).stat().st_size > 20_000
    assert window.complaints() == []


def test_prints(page, tmp_path):
    assert page.print(tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
