"""The bill of materials lists every package of the environment, and every reference resolves."""

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parent.parent / "tools" / "bill_of_materials.py"


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
