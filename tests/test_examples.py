"""The scripts in examples/, beyond what the documentation build runs (tests/test_docs.py executes every script)."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from tests.real_data import require

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("plot_*.py"))
FACTORY = EXAMPLES / "factories" / "deep_gat.py"
INTERNAL_MODULES = {  # what the gallery may import besides the public names of ``equipoise``
    "equipoise.experiments.parser",
    "equipoise.experiments.store",
    "equipoise.experiments.sweep",
    "equipoise.init.layers",
    "equipoise.integrations.lightning",
    "equipoise.integrations.tensorboard",
}

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def test_gallery_is_numbered_without_gaps():
    numbers = [int(path.stem.split("_")[1]) for path in SCRIPTS]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 10


def test_gallery_header_has_a_title():
    title, underline, *_ = (EXAMPLES / "README.rst").read_text(encoding="utf-8").splitlines()
    assert re.fullmatch("=+", underline)
    assert len(underline) >= len(title)


@every_script
def test_script_has_title_and_summary(script):
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    title, underline, blank, *summary = docstring.splitlines()
    assert re.fullmatch("=+", underline)
    assert len(underline) >= len(title)
    assert not blank
    assert len(" ".join(summary).split()) >= 20


@every_script
def test_script_shows_a_figure_and_ends_with_text(script):
    text = script.read_text(encoding="utf-8")
    cells = text.split("\n# %%\n")
    assert any("plt.subplots(" in cell and "plt.show()" in cell for cell in cells)
    assert all(line.startswith("#") for line in cells[-1].strip().splitlines())


@every_script
def test_script_uses_public_names(script):
    tree = ast.parse(script.read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    internal = {name for name in imported if name and name.startswith("equipoise.")}
    assert internal <= INTERNAL_MODULES


@pytest.mark.parametrize(
    ("name", "extra"), [("plot_08_lightning", "lightning"), ("plot_09_tensorboard", "tensorboard")]
)
def test_script_without_its_extra_says_what_to_install(name, extra):
    blocked = f"import sys; sys.modules.update(dict.fromkeys(({extra!r}, 'pytorch_lightning'), None))"
    code = f"{blocked}; import runpy; runpy.run_path({str(EXAMPLES / name)!r} + '.py', run_name='__main__')"
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert f"pip install 'equipoise[{extra}]'" in result.stdout


def test_factory_of_one_network():
    result = CliRunner().invoke(app, ["inspect", f"{FACTORY}:three_layers", "--json"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["laws"]) == 2


def test_factory_for_a_depth_check():
    folder = str(require("cora"))
    command = ["inspect", f"{FACTORY}:build", "--dataset", "cora", "--data-root", folder]
    result = CliRunner().invoke(app, [*command, "--depth", "2", "--init", "bal-o", "--steps", "1", "--json"])
    assert result.exit_code == 0, result.output
    (network,) = json.loads(result.stdout)["results"]
    assert (network["depth"], network["scheme"], network["steps"]) == (2, "bal-o", 1)
