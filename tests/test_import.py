"""Cost of imports: what importing the package and running light commands loads."""

import json
import subprocess
import sys

import pytest

import equipoise as eq

HEAVY = ("torch", "torch_geometric", "matplotlib", "pandas", "numba", "ray", "typer", "scipy", "numpy", "pydantic")


def loaded_modules(code: str, cwd=None) -> set[str]:
    script = f"import json, sys\n{code}\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=cwd)
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_package_import_is_light():
    assert loaded_modules("import equipoise") == set()


def test_laws_need_only_torch():
    assert loaded_modules("import equipoise as eq; eq.discover, eq.explain, eq.rebalance_") <= {"torch", "numpy"}


RUN = """
from typer.testing import CliRunner
from equipoise.cli import app
result = CliRunner().invoke(app, {arguments!r})
assert result.exit_code == {exit_code}, result.output
assert {text!r} in result.output, result.output
"""


@pytest.mark.parametrize(
    ("arguments", "exit_code", "text"),
    [
        (["--help"], 0, "reproduce"),
        (["status"], 0, "conservation"),
        (["status", "sgd", "--json"], 0, '"experiment": "sgd"'),
        (["store", "--help"], 0, "export"),
        (["store", "import", "runs.csv"], 0, "0 runs added"),
        (["store", "export", "copy.csv", "--store", "empty.sqlite"], 0, "0 runs in copy.csv"),
        (["data", "list"], 0, "cora"),
        (["report", "--help"], 0, "EXPERIMENT"),
        (["bench", "--help"], 0, "cora-10"),
        (["reprodcue", "sgd"], 2, "reprodcue"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_light_commands_do_not_import_torch(tmp_path, arguments, exit_code, text):
    setup = "from equipoise.experiments.store import Store; from equipoise.experiments.results_csv import write_csv\n"
    setup += "from pathlib import Path\nwith Store('empty.sqlite'): write_csv([], Path('runs.csv'))\n"
    code = setup + RUN.format(arguments=arguments, exit_code=exit_code, text=text)
    assert loaded_modules(code, cwd=tmp_path) - {"numpy", "pydantic"} == {"typer"}


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["reprodcue"]], ids=" ".join)
def test_help_imports_nothing_but_the_command_line(arguments):
    code = f"from typer.testing import CliRunner\nfrom equipoise.cli import app\nCliRunner().invoke(app, {arguments!r})"
    assert loaded_modules(code) - {"pydantic"} == {"typer"}  # typer imports it to convert arguments


def test_module_is_runnable():
    result = subprocess.run(
        [sys.executable, "-m", "equipoise", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"equipoise {eq.__version__}\n"


def test_command_line_shows_log_messages():
    script = (
        "import logging, sys, equipoise.cli as cli\n"
        "cli.app = lambda: logging.getLogger('equipoise').info('compiling kernels')\n"
        "cli.main()"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("", "compiling kernels\n")


def test_library_adds_no_log_handler():
    script = "import logging, sys, equipoise; sys.exit(len(logging.getLogger('equipoise').handlers))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_public_names_exist():
    for name in eq.__all__:
        assert getattr(eq, name) is not None
        assert name in dir(eq)


def test_unknown_name_is_an_attribute_error():
    assert not hasattr(eq, "no_such_thing")
