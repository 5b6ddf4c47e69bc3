"""What an import costs, and who may import whom."""

import json
import subprocess
import sys

import equipoise as eq

HEAVY = ("torch", "torch_geometric", "matplotlib", "pandas", "numba", "ray", "typer", "scipy")


def loaded_after(code: str) -> set[str]:
    script = f"import json, sys; {code}; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_importing_the_package_imports_nothing_heavy():
    assert loaded_after("import equipoise") == set()


def test_the_laws_need_torch_only():
    assert loaded_after("import equipoise as eq; eq.discover, eq.explain, eq.rebalance_") == {"torch"}


def test_help_does_not_need_torch():
    code = "from typer.testing import CliRunner; from equipoise.cli import app; CliRunner().invoke(app, ['--help'])"
    assert loaded_after(code) == {"typer"}


def test_every_public_name_is_there():
    for name in eq.__all__:
        assert getattr(eq, name) is not None
        assert name in dir(eq)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(eq, "no_such_thing")
