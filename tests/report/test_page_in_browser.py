"""The page in a real browser, opened as a local file."""

import pytest

from tests.report.browser import open_browser
from tests.report.example_page import write_example_page

CHANGE = """
const control = document.getElementById(arguments[0]);
if (control.type === "checkbox") control.checked = arguments[1]; else control.value = arguments[1];
control.dispatchEvent(new Event(control.type === "search" ? "input" : "change"));
"""
HOVER = """
const node = document.querySelector(arguments[0]), box = node.getBoundingClientRect();
const centre = {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true};
node.dispatchEvent(new PointerEvent("pointermove", centre));
const tooltip = document.getElementById("tooltip");
return tooltip.hidden ? null : tooltip.textContent;
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def file(folder):
    return write_example_page(folder)


@pytest.fixture(scope="module")
def browser(folder):
    with open_browser(folder) as opened:
        yield opened


@pytest.fixture
def page(browser, file):
    """The page, freshly opened; a test fails if the console shows a message."""
    browser.open(file)
    yield browser
    assert browser.console_messages() == []


def count(page, selector):
    return page.run("return document.querySelectorAll(arguments[0]).length", selector)


def test_opens(page, tmp_path):
    assert page.run("return document.title") == "equipoise: runs & more.sqlite"
    assert count(page, "section.experiment") == 3
    assert page.run("return document.querySelector('figure img').naturalWidth") > 500
    assert page.screenshot(tmp_path / "desktop.png").stat().st_size > 20_000


def test_policy_blocks_foreign_scripts(browser, file):
    browser.open(file)
    browser.run("const s = document.createElement('script'); s.textContent = 'window.x = 1'; document.body.append(s)")
    assert browser.run("return window.x === undefined")
    assert any("Content Security Policy" in message for message in browser.console_messages())


def test_page_leads_with_accuracy_against_depth(page):
    assert page.run("return document.querySelector('main section').id") == "lead"
    texts = "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)"
    assert page.run(texts, "#lead .panels .title") == ["cora", "texas"]
    assert count(page, "#lead .panels circle.ours") == 8
    assert count(page, "#lead .panels circle.paper") == 2
    colours = "return [...document.querySelectorAll('#lead .legend line')].map((l) => getComputedStyle(l).stroke)"
    xav, bal_o, constant = page.run(colours)
    assert len({xav, bal_o, constant}) == 3
    assert page.run(texts, "#lead .panels line.constant") == [
        *("a constant prediction: 31.9", "a constant prediction: 59.5")
    ]


def test_markers_are_inside_their_panels(page):
    assert page.run("""
        return [...document.querySelectorAll('.panels circle')].every((circle) => {
          const mark = circle.getBoundingClientRect(), panel = circle.closest('svg').getBoundingClientRect();
          const fits = mark.top >= panel.top && mark.bottom <= panel.bottom;
          return fits && mark.left >= panel.left && mark.right <= panel.right;
        })
    """)


def test_table_of_comparisons_is_one_click_away(page):
    visible = "return document.querySelector(arguments[0]).checkVisibility()"
    assert not page.run(visible, "#experiment-1 .comparisons table")
    page.run("document.querySelector('#experiment-1 .comparisons summary').click()")
    assert page.run(visible, "#experiment-1 .comparisons table")
    assert page.run(visible, "#experiment-1 > .wide > table"), "tables are open"


def test_link_to_a_claim_opens_its_comparisons(page):
    visible = "return document.querySelector(arguments[0]).checkVisibility()"
    assert not page.run(visible, "#claim-1-2 .comparisons table")
    page.run("""
        const opened = new Promise((done) => { addEventListener("hashchange", () => setTimeout(done)); });
        document.querySelector('a[href="#claim-1-2"]').click();
        return opened;
    """)
    assert page.run(visible, "#claim-1-2 .comparisons table")
    assert not page.run(visible, "#claim-1-1 .comparisons table")


def test_verdicts_are_in_the_first_screen(page):
    bottom = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
    assert page.run(bottom, ".tally") < 300
    assert page.run(bottom, "#lead .panels") < 900
    widths = "return [...document.querySelectorAll('.parts')].map((bar) => [...bar.children].map((i) => i.clientWidth))"
    bars = page.run(widths)
    assert len(bars) == 10
    assert all(min(bar) > 0 for bar in bars)


def test_curves_of_selected_runs(page):
    assert count(page, "#curve-chart path") == 2
    loss = page.run("return document.querySelector('#curve-chart path').getAttribute('d')")
    page.run(CHANGE, "curve-measure", "test_accuracy")
    assert page.run("return document.querySelector('#curve-chart .title').textContent") == "test accuracy (%)"
    assert page.run("return document.querySelector('#curve-chart path').getAttribute('d')") != loss
    page.run("document.querySelector('#curve-runs input').click()")
    assert count(page, "#curve-chart path") == 1
    page.run("document.getElementById('curve-clear').click()")
    assert "select a run" in page.run("return document.getElementById('curve-chart').textContent")
    page.run("document.querySelectorAll('#curve-runs input')[1].click()")
    page.run(CHANGE, "curve-log", True)
    assert count(page, "#curve-chart path") == 1


def test_curves_that_differ_by_little_fill_the_chart(page):
    """The loss of the example falls from 1.95 to 1.94 in six epochs; on an axis from 0 that is a flat line."""
    levels = page.run("""
        const paths = [...document.querySelectorAll("#curve-chart path.curve")].map((path) => path.getAttribute("d"));
        return paths.flatMap((d) => d.slice(1).split("L").map((point) => Number(point.split(" ")[1])));
    """)
    height = page.run("return document.querySelector('#curve-chart svg').viewBox.baseVal.height")
    assert max(levels) - min(levels) > height / 2


def test_filter_matches_all_words(page):
    page.run(CHANGE, "curve-filter", "BAL-O l=5")
    assert count(page, "#curve-runs input") == 1
    page.run(CHANGE, "curve-filter", "nonsense")
    assert "no run" in page.run("return document.getElementById('curve-runs').textContent")


def test_filtered_runs_disappear_from_the_chart(page):
    page.run(CHANGE, "curve-filter", "bal-o")
    assert count(page, "#curve-chart path.curve") == 1
    page.run(CHANGE, "curve-filter", "nonsense")
    assert "no selected run matches" in page.run("return document.getElementById('curve-chart').textContent")


def test_mean_over_seeds_has_a_band(page):
    page.run("document.getElementById('curve-clear').click()")
    page.run("document.querySelector('#curve-runs input').click()")
    page.run(CHANGE, "curve-mean", True)
    assert count(page, "#curve-chart path.curve") == count(page, "#curve-chart path.band") == 1
    assert "(1 seed)" in page.run(HOVER, "#curve-chart svg")


def test_dragging_zooms_both_axes(page):
    ticks = "return [...document.querySelectorAll('#curve-chart text')].map((text) => text.textContent)"
    page.run("document.getElementById('curve-chart').scrollIntoView({block: 'center'})")
    everything = page.run(ticks)
    left, top, width, height = page.run("""
        const box = document.querySelector('#curve-chart svg').getBoundingClientRect();
        return [box.left, box.top, box.width, box.height];
    """)
    page.drag((left + 0.3 * width, top + 0.3 * height), (left + 0.6 * width, top + 0.5 * height))
    assert page.run(ticks) != everything
    page.run("document.getElementById('curve-unzoom').click()")
    assert page.run(ticks) == everything
    assert page.run("return document.getElementById('curve-unzoom').hidden")


def test_figures_follow_dark_mode(browser, file):
    for scheme, inverted in (("light", False), ("dark", True)):
        browser.open(file, prefers_color_scheme=scheme)
        style = browser.run("return getComputedStyle(document.querySelector('figure img')).filter")
        assert ("invert" in style) is inverted


def test_hovering_over_a_curve_shows_its_values(page):
    tooltip = page.run(HOVER, "#curve-chart svg")
    runs = page.run("return JSON.parse(document.getElementById('data').textContent).runs")
    assert len(tooltip.splitlines()) == 2
    value, label = tooltip.splitlines()[0].split("  ")
    epoch = int(label.split("epoch ")[1].rstrip(")"))
    assert float(value) == runs[0]["curves"]["loss"][runs[0]["epochs"].index(epoch)]
    page.run("document.querySelector('#curve-chart svg').dispatchEvent(new PointerEvent('pointerleave'))")
    assert page.run("return document.getElementById('tooltip').hidden")


def test_heat_maps(page):
    assert count(page, "#layer-chart-first rect") == count(page, "#layer-chart-second rect") == 5 * 6
    tooltip = page.run(HOVER, "#layer-chart-second rect[data-row='3'][data-column='4']")
    layers = page.run("return JSON.parse(document.getElementById('data').textContent).layers")
    assert tooltip.endswith("layer 4, epoch 5")
    value = layers[1]["quantities"]["gradient/features"]["values"][3][4]
    assert float(tooltip.split()[0]) == pytest.approx(value, rel=5e-3)
    fill = "return document.querySelector('#layer-chart-first rect').getAttribute('fill')"
    logarithmic = page.run(fill)
    page.run(CHANGE, "layer-log", False)
    assert page.run(fill) != logarithmic
    page.run(CHANGE, "layer-quantity", "representation/mad")
    assert page.run("return document.getElementById('layer-log').checked")
    page.run(CHANGE, "layer-second", "")
    assert count(page, "#layer-chart-second rect") == 0
    assert count(page, "#layer-chart-first rect") == 5 * 6


def test_copy_buttons(page, file):
    page.run("""
        navigator.clipboard.writeText = async (text) => { window.copied = text; };
        document.querySelector('#experiment-2 .copy').click();
    """)
    assert (
        page.run("return window.copied")
        == f"equipoise reproduce dynamics-5 --store '{file.with_name('runs & more.sqlite')}'"
    )
    page.run("navigator.clipboard.writeText = async () => { throw new Error('denied'); }")
    page.run("""
        document.execCommand = () => { window.fallback = document.activeElement.value; };
        document.querySelector('#experiment-2 td .copy').click();
    """)
    assert (
        page.run("return window.fallback")
        == f"equipoise reproduce dynamics-5 --init xav --store '{file.with_name('runs & more.sqlite')}'"
    )


def test_narrow_window_in_dark_mode(browser, file, tmp_path):
    browser.open(file, width=360, height=740, prefers_color_scheme="dark")
    assert browser.run("return document.documentElement.scrollWidth") == 360
    background, text = browser.run("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
    assert sum(map(int, background[4:-1].split(","))) < 150 < sum(map(int, text[4:-1].split(",")))
    assert browser.run("return document.querySelector('#curve-chart svg').getBoundingClientRect().right") <= 360
    assert browser.screenshot(tmp_path / "phone.png", full_page=True).stat().st_size > 20_000
    assert browser.console_messages() == []


def test_small_figures_are_not_enlarged_on_phones(browser, file):
    browser.open(file, width=360, height=740)
    draw = """
        const canvas = document.createElement("canvas"), image = new Image(), figure = document.createElement("figure");
        canvas.width = 500;
        image.src = canvas.toDataURL();
        figure.append(image);
        document.querySelector("main").append(figure);
        return image.decode().then(() => image.width);
    """
    assert browser.run(draw) == 500


def test_prints(page, tmp_path):
    assert page.print_pdf(tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
