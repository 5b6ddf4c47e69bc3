"""The documentation builds without warnings, works from a folder without a network, and its code runs."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import matplotlib
import pytest
import torch
from filelock import FileLock
from torch_geometric.nn import GAT

import equipoise as eq
from equipoise.nn.fused_convs import FUSED_CLASSES
from tests.real_data import require

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = ("_build", "examples")  # ignored by git
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
CODE = re.compile(r"^(?P<skip>% not run[^\n]*\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(path for path in DOCS.rglob("*.md") if not set(path.relative_to(DOCS).parts) & set(GENERATED))


class Page(HTMLParser):
    """The links, the loaded resources and the anchors of an HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.resources: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        loads = LOADED.get(tag)
        if loads in values and values.get("rel") not in ("canonical", "index", "search", "next", "prev", "author"):
            self.resources.append(values[loads])


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site without the results of the examples, built once for all test processes from a copy of the sources."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "docs-site"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            build_site(folder, "-D", "sphinx_gallery_conf.plot_gallery=False")
    return folder / "html"


def build_site(folder: Path, *options: str) -> None:
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns(*GENERATED))
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", *options, "docs", "html"]
    build = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    assert build.returncode == 0, build.stderr[-5000:]


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path) for path in site.rglob("*.html")}


def test_local_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links + page.resources:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            linked = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[linked].anchors if linked in pages else set()
            if not linked.exists() or (parts.fragment and linked in pages and unquote(parts.fragment) not in anchors):
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_pages_load_nothing_from_the_network(site: Path, pages: dict[Path, Page]) -> None:
    remote = [f"{path.name}: {link}" for path, page in pages.items() for link in page.resources if "//" in link]
    styles = [path.name for path in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", path.read_text())]
    assert not remote
    assert not styles


def test_equations_are_mathml(site: Path) -> None:
    html = (site / "theory" / "symmetry.html").read_text(encoding="utf-8")
    assert html.count("<math") > 20
    assert not re.search(r"<script[^>]*mathjax", html, re.IGNORECASE)


def test_reference_documents_every_public_name(pages: dict[Path, Page], site: Path) -> None:
    anchors = set().union(*(pages[path.resolve()].anchors for path in (site / "reference").glob("*.html")))
    names = {f"equipoise.{name}" for name in eq.__all__ if name != "__version__"}
    layers = {f"{layer.__module__}.{layer.__name__}" for layer in FUSED_CLASSES.values()}
    missing = (names | layers) - anchors
    assert missing <= {"equipoise.EquipoiseError"}  # documented with the other errors
    assert "equipoise.errors.EquipoiseError" in anchors


@pytest.mark.slow  # runs all examples
def test_gallery_has_a_figure_for_every_example(tmp_path: Path) -> None:
    build_site(tmp_path / "site")
    site = tmp_path / "site" / "html"
    html = (site / "examples" / "index.html").read_text(encoding="utf-8")
    absent = {extra for extra in ("lightning", "tensorboard") if find_spec(extra) is None}
    for script in (ROOT / "examples").glob("plot_*.py"):
        assert f"{script.stem}.html" in html
        if not any(extra in script.stem for extra in absent):  # without the extra, the script only prints a hint
            figures = list((site / "_images").glob(f"sphx_glr_{script.stem}_001*.png"))
            assert figures, f"{script.name} draws no figure"


def test_laws_in_the_readme_are_those_of_its_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(require("cora")))
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Laws")[2]
    code, output = re.findall(r"```(?:python)?\n(.*?)```", text, re.DOTALL)[:2]
    names = {"eq": eq, "data": eq.load_dataset("cora"), "GAT": GAT}  # of the first block
    with torch.random.fork_rng():
        exec(compile(code, "README", "exec"), names)
    assert capsys.readouterr().out == output
    assert max(float(law.imbalance().abs().max()) for law in names["laws"]) < 1e-5


@pytest.mark.parametrize("path", [path for path in PAGES if CODE.search(path.read_text())], ids=lambda path: path.stem)
def test_code_in_the_pages_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    blocks = [block["code"] for block in CODE.finditer(path.read_text(encoding="utf-8")) if not block["skip"]]
    with torch.random.fork_rng():
        exec(compile("\n".join(blocks), path.name, "exec"), {"__name__": path.stem})
