"""Experiments by name or from a TOML file (docs/guide/experiments.md).

The paper's experiments are files of this package, ``experiments/paper/*.toml``; ``experiments/beyond/*.toml`` has
others, on questions that the paper leaves open. Pydantic checks names and types; the
checks that involve several tables (axes, published cells, claims) follow here. Every error names file, table and field.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from equipoise.errors import ChoiceError, EquipoiseError, SpecError
from equipoise.experiments.experiment import (
    AllowedValues,
    Cell,
    Claim,
    Coordinates,
    Experiment,
    ExperimentKind,
    Rows,
    Value,
    check_number_of_runs,
)
from equipoise.experiments.spec import RunSpec, check_setting_names, validate_setting
from equipoise.inert_text import hidden_characters, printable

RUN_MEASURES = ("accuracy", "ci", "epochs", "epochs_ci")
DATA_MEASURES = ("nodes", "edges", "features", "classes", "train", "val", "test")

Axes = dict[str, tuple[Value, ...]]


class SettingRule(BaseModel):
    """A ``[[set]]`` table: settings for the cells that match ``where``."""

    model_config = ConfigDict(extra="allow")
    where: AllowedValues = {}


class ExperimentFile(BaseModel):
    """The tables and fields of an experiment file."""

    model_config = ConfigDict(extra="forbid")
    title: str | None = None
    kind: ExperimentKind = "table"
    source: str = ""
    runs: StrictInt | None = None
    compare: str | None = None
    every: Annotated[StrictInt, Field(ge=1)] = 25
    notes: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    figure: str | None = None
    grid: dict[str, Any]
    variants: dict[str, dict[str, Any]] = {}
    rules: list[SettingRule] = Field(default=[], alias="set")
    published: list[Rows] = []
    claims: tuple[Claim, ...] = ()
    provenance: dict[str, str] = {}
    load_options: dict[str, dict[str, Value]] = Field(default={}, alias="load")


FILE_FIELDS = [field.alias or name for name, field in ExperimentFile.model_fields.items()]
UNKNOWN_NAME = ("extra_forbidden", "unexpected_keyword_argument")  # of models and of dataclasses
VALUE_TYPES = ("str", "int", "float", "bool")  # of a single value, as pydantic names them
CLAIM_FIELDS = [field.name for field in fields(Claim)]


def experiment_names() -> list[str]:
    """List the names of the paper's tables and figures.

    Returns:
        Sorted names.

    Example:
        >>> "sgd" in experiment_names()
        True
    """
    return _names("paper")


def further_experiment_names() -> list[str]:
    """List the names of this package's experiments that are not the paper's.

    Returns:
        Sorted names.

    Example:
        >>> further_experiment_names()
        ['biases', 'calibration', 'transformer', 'variations-apart', 'very-deep', 'when-balance-helps']
    """
    return _names("beyond")


def load_experiment(name: str | Path) -> Experiment:
    """Load an experiment of this package by name, or one from a ``.toml`` file.

    Args:
        name: a name of :func:`experiment_names` or :func:`further_experiment_names`, or the path of a file.

    Returns:
        The experiment.

    Raises:
        ChoiceError: If there is no experiment of this name.
        SpecError: If the file cannot be read or is invalid.

    Example:
        >>> sgd = load_experiment("sgd")
        >>> sgd.published[sgd.coordinates({"dataset": "texas", "init": "bal-o", "depth": 40})]["accuracy"]
        57.3
    """
    path = Path(name)
    if path.suffix == ".toml":
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"the experiment cannot be read: {error}", where=str(path)) from error
        return replace(parse_experiment(text, path.stem, str(path)), target=str(path))
    paper, further = experiment_names(), further_experiment_names()
    if name not in (*paper, *further):
        raise ChoiceError("experiment", name, [*paper, *further, "a file of your own, my.toml"])
    file = _folder("paper" if name in paper else "beyond") / f"{name}.toml"
    return parse_experiment(file.read_text(encoding="utf-8"), str(name), f"{name}.toml")


def _folder(name: str) -> Traversable:
    return files("equipoise.experiments") / name


def _names(folder: str) -> list[str]:
    return sorted(file.name.removesuffix(".toml") for file in _folder(folder).iterdir() if file.name.endswith(".toml"))


def parse_experiment(text: str, name: str, file: str) -> Experiment:
    """Parse the text of an experiment file.

    Args:
        text: TOML.
        name: name of the experiment.
        file: file name for error messages.

    Returns:
        The experiment.

    Raises:
        SpecError: If the text is not a valid experiment; names file, table and field.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"not valid TOML: {error}", where=file) from error
    except RecursionError as error:
        raise SpecError("lists or tables are nested too deeply", where=file) from error
    with _location(file):
        _check_text(document)
        try:
            content = ExperimentFile.model_validate(document)
        except ValidationError as error:
            _raise_file_error(error)
        return _build(content, name)


def _check_text(value: Any) -> None:
    """Refuse control characters in any text of a file: titles and names are printed on terminals."""
    if isinstance(value, dict):
        for name, entry in value.items():
            _check_text(name)
            _check_text(entry)
    elif isinstance(value, list):
        for entry in value:
            _check_text(entry)
    elif isinstance(value, str) and hidden_characters(value):
        raise SpecError(f"a control character in {printable(value)!r}", remedy="remove it")


def _build(content: ExperimentFile, name: str) -> Experiment:
    axes, fixed, seeds = _grid(content)
    compare = content.compare or ("init" if "init" in axes else list(axes)[-1])
    if compare not in axes:
        raise ChoiceError("axis of the grid", compare, axes)
    axes[compare] = axes.pop(compare)  # as the last axis it varies fastest, so the values to compare are adjacent
    is_data = content.kind == "data"
    check_number_of_runs(math.prod(map(len, axes.values())) * len(seeds))
    cells = tuple(_cells(content, axes, fixed, () if is_data else seeds))
    runs = sum(len(cell.specs) for cell in cells)
    if content.runs not in (None, runs):
        raise SpecError(f"the grid has {runs} runs, but the file states {content.runs}", where="runs")
    check_setting_names(content.provenance)
    for number, claim in enumerate(content.claims, start=1):
        with _location(f"[[claims]] number {number}"):
            _check_claim(claim, axes)
    return Experiment(
        name=name,
        title=content.title or name,
        axes=axes,
        cells=cells,
        compare=compare,
        published=_published(content, axes, DATA_MEASURES if is_data else RUN_MEASURES),
        figure=content.figure or _default_figure(content.draws, axes),
        runs_per_cell=len(seeds),
        **{
            field: getattr(content, field)
            for field in ("kind", "source", "provenance", "claims", "notes", "draws", "every", "load_options")
        },
    )


def _default_figure(draws: tuple[str, ...], axes: Axes) -> str | None:
    """Accuracy and epochs by depth and scheme have a figure that needs no name in the file."""
    is_accuracy = bool(draws) and set(draws) <= {"accuracy", "epochs"} and {"depth", "init"} <= set(axes)
    return "accuracy" if is_accuracy else None


def _grid(content: ExperimentFile) -> tuple[Axes, dict[str, Value], tuple[int, ...]]:
    """Split the grid into axes (settings with a list), fixed settings (with a single value) and seeds."""
    axes: Axes = {"variant": tuple(content.variants)} if content.variants else {}
    fixed: dict[str, Value] = {}
    with _location("[grid]"):
        for name, value in content.grid.items():
            if isinstance(value, list):
                values = tuple(validate_setting(name, entry) for entry in value)
                if not values or len(set(values)) < len(values):
                    raise SpecError(f"{name} needs at least one value and no duplicates", where=name)
                axes[name] = values
            else:
                fixed[name] = validate_setting(name, value)
        seeds: Any = axes.pop("seed", (fixed.pop("seed", 0),))
        if not axes:
            raise SpecError("nothing varies", remedy='give at least one setting a list: init = ["xav", "bal-o"]')
    return axes, fixed, seeds


def _cells(content: ExperimentFile, axes: Axes, fixed: dict[str, Value], seeds: tuple[int, ...]) -> Iterator[Cell]:
    variants = {}
    for name, table in content.variants.items():
        with _location(f"[variants.{name!r}]"):
            variants[name] = {setting: validate_setting(setting, value) for setting, value in table.items()}
    rules = []
    for number, rule in enumerate(content.rules, start=1):
        with _location(f"[[set]] number {number}"):
            _check_rule(rule, axes, variants)
            changes = {name: validate_setting(name, value) for name, value in (rule.model_extra or {}).items()}
            rules.append((rule.where, changes))
    for coordinates in product(*axes.values()):
        position = dict(zip(axes, coordinates, strict=True))
        settings = fixed | {name: value for name, value in position.items() if name != "variant"}
        settings |= variants.get(str(position.get("variant")), {})
        for where, changes in rules:
            current = position | settings
            if all(current.get(name) in allowed for name, allowed in where.items()):
                settings |= changes
        with _location(", ".join(f"{name} {value}" for name, value in position.items())):
            yield Cell(coordinates, tuple(RunSpec.from_dict(settings | {"seed": seed}) for seed in seeds))


def _check_rule(rule: SettingRule, axes: Axes, variants: dict[str, dict[str, Value]]) -> None:
    """Check that every value in ``where`` can occur, so that no rule is ignored because of a typing error."""
    check_setting_names(name for name in rule.where if name != "variant")
    for name, values in rule.where.items():
        if name in axes and not any(name in settings for settings in variants.values()):
            for value in values:
                _check_value(name, value, axes)
        elif name != "variant":
            for value in values:
                validate_setting(name, value)


def _published(content: ExperimentFile, axes: Axes, measures: tuple[str, ...]) -> dict[Coordinates, dict[str, float]]:
    """Read the published numbers; lists in one table are read in parallel."""
    published: dict[Coordinates, dict[str, float]] = {}
    known = (*axes, *measures, "source")
    for number, rows in enumerate(content.published, start=1):
        with _location(f"[[published]] number {number}"):
            for row in rows:
                if unknown := [name for name in row if name not in known]:
                    raise ChoiceError("field", unknown[0], known)
                coordinates = tuple(_check_value(axis, row.get(axis), axes) for axis in axes)
                if coordinates in published:
                    raise SpecError("published twice", where=str(coordinates))
                published[coordinates] = {name: _number(name, row[name]) for name in measures if name in row}
    return published


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SpecError(f"{name} must be a finite number, got {value!r}", where=name)
    return value


def _check_claim(claim: Claim, axes: Axes) -> None:
    for side in (*claim.better, *claim.worse, claim.narrow, claim.wide):
        for axis, value in side.items():
            _check_value(axis, value, axes)
    for axis, values in claim.where.items():
        for value in values:
            _check_value(axis, value, axes)
    if len(claim.better) != len(claim.worse) and 1 not in (len(claim.better), len(claim.worse)):
        raise SpecError("lists in better and worse must have equal lengths, or one of them a single value")
    if {*claim.better[0]} != {*claim.worse[0]} or {*claim.narrow} != {*claim.wide}:
        raise SpecError("both sides of a comparison must name the same axes")


def _check_value(axis: str, value: Any, axes: Axes) -> Value:
    if axis not in axes:
        raise SpecError(f"{axis} is not an axis of the grid", remedy="axes are the settings with a list in [grid]")
    if value not in axes[axis]:
        raise ChoiceError(axis, value, map(str, axes[axis]))
    return value  # type: ignore[no-any-return]


def _raise_file_error(error: ValidationError) -> NoReturn:
    """Raise an error of pydantic in our form, preferably one of an unknown name, which explains a missing one."""
    errors: list[Any] = sorted(
        error.errors(), key=lambda detail: (detail["type"] not in UNKNOWN_NAME, detail["type"] == "missing")
    )
    table, *rest = errors[0]["loc"]
    is_list = bool(rest) and isinstance(rest[0], int)
    with _location(f"[[{table}]] number {rest[0] + 1}" if is_list else f"[{table}]" if rest else ""):
        raise _translate(errors, in_claim=is_list and table == "claims") from error


def _translate(errors: list[Any], in_claim: bool) -> EquipoiseError:
    first = errors[0]
    is_value = first["loc"][-1] in VALUE_TYPES  # pydantic appends the type that it tried last
    name = next(part for part in reversed(first["loc"][:-1] if is_value else first["loc"]) if isinstance(part, str))
    match first["type"]:
        case kind if kind in UNKNOWN_NAME:
            noun, known = ("field", CLAIM_FIELDS) if in_claim else ("table or field", FILE_FIELDS)
            return ChoiceError(noun, name, known)
        case "literal_error":
            return ChoiceError(name, first["input"], re.findall("'(.*?)'", first["ctx"]["expected"]))
        case "missing" if in_claim:
            missing = [detail["loc"][2] for detail in errors if detail["loc"][:2] == first["loc"][:2]]
            return SpecError(f"a claim needs {' and '.join(missing)}")
        case "missing":
            remedy = '[grid] with dataset = ["cora"], depth = …'
            return SpecError("there is no grid of runs", where="[grid]", remedy=remedy)
        case "value_error":
            return SpecError(str(first["ctx"]["error"]))
        case _:  # such as "Input should be a valid integer"
            message = first["msg"].replace("Input should", name + " must").replace("dictionary", "table")
            return SpecError(f"{name} must be a text, a number, true or false" if is_value else message, where=name)


@contextmanager
def _location(location: str) -> Iterator[None]:
    """Prefix the location of errors raised in this block."""
    try:
        yield
    except EquipoiseError as error:
        where = ", ".join(part for part in (location, error.where) if part)
        raise SpecError(error.what, where=where, remedy=error.remedy) from error
