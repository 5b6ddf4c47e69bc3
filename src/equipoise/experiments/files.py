"""Experiments by name: the paper's, which come with the package, and anybody's own (docs/experiments.md)."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from equipoise.errors import ChoiceError, SpecError
from equipoise.experiments.experiment import Experiment
from equipoise.experiments.reading import parse


def targets() -> list[str]:
    """The names of the paper's tables and figures.

    Example:
        >>> "sgd" in targets()
        True
    """
    return sorted(file.name.removesuffix(".toml") for file in _paper().iterdir() if file.name.endswith(".toml"))


def load(name: str | Path) -> Experiment:
    """The paper's experiment of this name, or the one in this file.

    Example:
        >>> sgd = load("sgd")
        >>> sgd.published[sgd.at({"dataset": "texas", "init": "bal-o", "depth": 40})]["accuracy"]
        57.3
    """
    path = Path(name)
    if path.suffix == ".toml":
        try:
            return parse(path.read_text(encoding="utf-8"), path.stem, str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"the experiment cannot be read: {error}", where=str(path)) from error
    if name not in targets():
        raise ChoiceError("target", name, [*targets(), "a file of your own, my.toml"])
    return parse((_paper() / f"{name}.toml").read_text(encoding="utf-8"), str(name), f"{name}.toml")


def _paper() -> Traversable:
    return files("equipoise.experiments") / "paper"
