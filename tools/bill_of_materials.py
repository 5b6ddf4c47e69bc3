"""Print a bill of materials of the running environment as CycloneDX 1.6 JSON: all packages with licence and users.

``make dist`` runs it in the environment in which the wheel was tested.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import Distribution, distribution, distributions
from typing import Any
from urllib.parse import quote

PACKAGE = "equipoise"


def canonical(name: str) -> str:
    """Return a package name in its normalised form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def reference(package: Distribution) -> str:
    """Return the package URL of a distribution."""
    return f"pkg:pypi/{canonical(package.metadata['Name'])}@{quote(package.version, safe='')}"


def licence(package: Distribution) -> str:
    """Return the licence: an SPDX expression, else the classifiers, else the first line of the licence field."""
    metadata = package.metadata
    classifiers = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    field = (metadata.get("License") or "").strip().splitlines()
    return metadata.get("License-Expression") or ", ".join(classifiers) or (field[0] if field else "unknown")


def component(package: Distribution) -> dict[str, Any]:
    """Return the entry of a distribution."""
    return {
        "type": "library",
        "bom-ref": reference(package),
        "name": package.metadata["Name"],
        "version": package.version,
        "purl": reference(package),
        "licenses": [{"license": {"name": licence(package)}}],
    }


def requirements(package: Distribution, installed: dict[str, Distribution]) -> list[str]:
    """Return the installed packages that a distribution requires without extras."""
    lines = [line for line in package.requires or () if "extra ==" not in line]
    names = [canonical(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]) for line in lines]
    return sorted({reference(installed[name]) for name in names if name in installed})


def bill_of_materials() -> dict[str, Any]:
    """Return the document."""
    installed = {canonical(package.metadata["Name"]): package for package in distributions()}
    others = [installed[name] for name in sorted(installed) if name != PACKAGE]
    root = distribution(PACKAGE)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(root)},
        "components": [component(package) for package in others],
        "dependencies": [
            {"ref": reference(package), "dependsOn": requirements(package, installed)} for package in (root, *others)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(bill_of_materials(), indent=2))
