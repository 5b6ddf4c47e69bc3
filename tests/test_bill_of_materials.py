"""The bill of materials lists every package of the environment, and every reference resolves."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOL = ROOT / "tools" / "bill_of_materials.py"
TOOLS_ONLY = {"docs", "dev"}  # extras that users do not install


def test_every_dependency_is_listed_with_version_and_licence() -> None:
    done = subprocess.run([sys.executable, TOOL], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    components = {entry["bom-ref"]: entry for entry in document["components"]}
    root = document["metadata"]["component"]["bom-ref"]
    known = {root, *components}
    depends = {entry["ref"]: set(entry["dependsOn"]) for entry in document["dependencies"]}
    assert depends.keys() == known
    assert all(needed <= known for needed in depends.values())
    assert not any("+" in reference for reference in known), "a package URL has %2B for the plus of a local version"
    names = {components[reference]["name"].lower().replace("-", "_") for reference in depends[root]}
    assert {"torch", "torch_geometric", "numpy", "numba", "pydantic"} <= names
    assert all(entry["version"] and entry["licenses"][0]["license"]["name"] for entry in components.values())


def test_review_names_every_direct_dependency_with_its_pinned_version() -> None:
    """``docs/security.md`` has one row per package: name, pinned version, use, untrusted input, licence."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [names for extra, names in project["optional-dependencies"].items() if extra not in TOOLS_ONLY]
    needed = {_canonical(name) for names in (project["dependencies"], *extras) for name in names}
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {_canonical(name): version for name, version in pins.items()}
    rows = re.findall(
        r"^\| ([\w-]+) \| ([\d.]+) \|(?: [^|]+ \|){3}$", (ROOT / "docs" / "security.md").read_text(), re.M
    )
    assert {_canonical(name): version for name, version in rows} == {name: pinned[name] for name in needed}


def _canonical(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-")
