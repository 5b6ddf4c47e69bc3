"""From the text of a TOML file to an experiment; what is wrong in it is told with file, table and field."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any

from equipoise.errors import ChoiceError, EquipoiseError, SpecError
from equipoise.experiments.experiment import At, Cell, Claim, Experiment, Value
from equipoise.experiments.spec import FIELDS, RunSpec, checked

KINDS = ("table", "figure", "data")
TEXT = {
    "title": str,
    "kind": str,
    "source": str,
    "runs": int,
    "compare": str,
    "every": int,
    "notes": list,
    "draws": list,
}
TABLES = {
    "grid": dict,
    "variants": dict,
    "set": list,
    "published": list,
    "claims": list,
    "provenance": dict,
    "load": dict,
}
RUN_MEASURES = ("accuracy", "ci", "epochs", "epochs_ci")
DATA_MEASURES = ("nodes", "edges", "features", "classes", "train", "val", "test")
CLAIM = {
    **{"say": str, "source": str, "measure": str, "by": float, "most": bool},
    **{"better": dict, "worse": dict, "where": dict, "narrow": dict, "wide": dict},
}

Axes = dict[str, tuple[Value, ...]]


def parse(text: str, name: str, file: str) -> Experiment:
    """The experiment that a file describes; what is wrong in it is told with file, table and field."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"not valid TOML: {error}", where=file) from error
    with _within(file):
        _check_names(document)
        axes, fixed, seeds = _grid(document)
        compare = document.get("compare", "init" if "init" in axes else list(axes)[-1])
        if compare not in axes:
            raise ChoiceError("axis of the grid", compare, axes)
        axes[compare] = axes.pop(compare)  # what is compared stands side by side: it varies fastest
        data = document.get("kind") == "data"
        cells = tuple(_cells(document, axes, fixed, () if data else seeds))
        experiment = Experiment(
            name=name,
            title=document.get("title", name),
            kind=document.get("kind", "table"),
            source=document.get("source", ""),
            axes=axes,
            cells=cells,
            compare=compare,
            published=_published(document, axes, DATA_MEASURES if data else RUN_MEASURES),
            provenance=document.get("provenance", {}),
            claims=tuple(_claims(document, axes)),
            notes=tuple(document.get("notes", ())),
            draws=tuple(document.get("draws", ())),
            every=document.get("every", 25),
            load=document.get("load", {}),
        )
        _check_whole(experiment, document)
    return experiment


def _check_names(document: Mapping[str, Any]) -> None:
    for name, value in document.items():
        kind: Any = (TEXT | TABLES).get(name)
        if kind is None:
            raise ChoiceError("table or field", name, TEXT | TABLES)
        if not isinstance(value, kind):
            raise SpecError(f"{name} must be {_WORDS[kind]}", where=name)
        if TABLES.get(name) is list and not all(isinstance(entry, dict) for entry in value):
            raise SpecError(f"{name} must be tables, each under [[{name}]]", where=name)
    if document.get("kind", "table") not in KINDS:
        raise ChoiceError("kind", document["kind"], KINDS)
    if "grid" not in document:
        raise SpecError("there is no grid of runs", where="[grid]", remedy='[grid] with dataset = ["cora"], depth = …')


_WORDS: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def _grid(document: Mapping[str, Any]) -> tuple[Axes, dict[str, Value], tuple[int, ...]]:
    """The axes (what has several values), what is fixed (what has one), and the seeds."""
    axes: Axes = {"variant": tuple(document["variants"])} if document.get("variants") else {}
    fixed: dict[str, Value] = {}
    with _within("[grid]"):
        for name, value in document["grid"].items():
            if isinstance(value, list):
                values = tuple(_setting(name, entry) for entry in value)
                if not values or len(set(values)) < len(values):
                    raise SpecError(f"{name} needs values, each once", where=name)
                axes[name] = values
            else:
                fixed[name] = _setting(name, value)
        seeds = axes.pop("seed", (fixed.pop("seed", 0),))
        if not axes:
            raise SpecError("nothing varies", remedy='give at least one setting a list: init = ["xav", "bal-o"]')
    return axes, fixed, tuple(int(str(seed)) for seed in seeds)


def _cells(document: Mapping[str, Any], axes: Axes, fixed: dict[str, Value], seeds: tuple[int, ...]) -> Iterator[Cell]:
    variants = {name: _settings(f"[variants.{name!r}]", table) for name, table in document.get("variants", {}).items()}
    rules = []
    for number, table in enumerate(document.get("set", ()), start=1):
        with _within(f"[[set]] number {number}"):
            rest = {name: value for name, value in table.items() if name != "where"}
            where = _allowed(table.get("where", {}))
            for name in where:
                if name not in (*FIELDS, "variant"):
                    raise ChoiceError("setting", name, (*FIELDS, "variant"))
            rules.append((where, _settings("", rest)))
    for values in product(*axes.values()):
        place = dict(zip(axes, values, strict=True))
        settings = fixed | {name: value for name, value in place.items() if name != "variant"}
        settings |= variants.get(str(place.get("variant")), {})
        for where, change in rules:
            known = place | settings
            if all(known.get(name) in allowed for name, allowed in where.items()):
                settings |= change
        with _within(", ".join(f"{name} {value}" for name, value in place.items())):
            yield Cell(values, tuple(RunSpec.from_dict(settings | {"seed": seed}) for seed in seeds))


def _published(document: Mapping[str, Any], axes: Axes, measures: tuple[str, ...]) -> dict[At, dict[str, float]]:
    """A value for each axis and numbers; where there are lists, their first entries belong together, and so on."""
    published: dict[At, dict[str, float]] = {}
    for number, table in enumerate(document.get("published", ()), start=1):
        with _within(f"[[published]] number {number}"):
            for name in table:
                if name not in (*axes, *measures, "source"):
                    raise ChoiceError("field", name, (*axes, *measures, "source"))
            for row in _rows({name: value for name, value in table.items() if name != "source"}):
                place = tuple(_one_of(axis, row.get(axis), axes[axis]) for axis in axes)
                if place in published:
                    raise SpecError("published twice", where=str(place))
                published[place] = {name: _number(name, row[name]) for name in measures if name in row}
    return published


def _claims(document: Mapping[str, Any], axes: Axes) -> Iterator[Claim]:
    for number, table in enumerate(document.get("claims", ()), start=1):
        with _within(f"[[claims]] number {number}"):
            for name, value in table.items():
                kind: Any = CLAIM.get(name)
                if kind is None:
                    raise ChoiceError("field", name, CLAIM)
                if not isinstance(value, int | float if kind is float else kind):
                    raise SpecError(f"{name} must be {_WORDS[kind]}")
            if missing := [name for name in ("say", "better", "worse") if name not in table]:
                raise SpecError(f"a claim needs {' and '.join(missing)}")
            claim = Claim(
                **{name: table[name] for name in ("say", "measure", "by", "most", "narrow", "wide") if name in table},
                source=table.get("source", ""),
                better=tuple(_rows(table["better"])),
                worse=tuple(_rows(table["worse"])),
                where=_allowed(table.get("where", {})),
            )
            _check_claim(claim, axes)
            yield claim


def _check_claim(claim: Claim, axes: Axes) -> None:
    for name in ("better", "worse", "narrow", "wide"):
        part = getattr(claim, name)
        for place in part if isinstance(part, tuple) else (part,):
            for axis, value in place.items():
                _one_of(axis, value, axes.get(axis))
    for axis, values in claim.where.items():
        for value in values:
            _one_of(axis, value, axes.get(axis))
    if len(claim.better) != len(claim.worse) and 1 not in (len(claim.better), len(claim.worse)):
        raise SpecError("lists in better and worse must have the same length, or one of them one entry")
    if {*claim.better[0]} != {*claim.worse[0]} or {*claim.narrow} != {*claim.wide}:
        raise SpecError("both sides of a comparison must name the same axes")
    if claim.measure not in ("accuracy", "epochs"):
        raise ChoiceError("measure", claim.measure, ("accuracy", "epochs"))


def _check_whole(experiment: Experiment, document: Mapping[str, Any]) -> None:
    runs = sum(len(cell.specs) for cell in experiment.cells)
    if "runs" in document and document["runs"] != runs:
        raise SpecError(f"the grid makes {runs} runs, and the file says {document['runs']}", where="runs")
    for name in experiment.provenance:
        if name not in FIELDS:
            raise ChoiceError("setting", name, FIELDS)


def _settings(table_name: str, table: Mapping[str, Any]) -> dict[str, Value]:
    with _within(table_name):
        if not isinstance(table, dict):
            raise SpecError("this must be a table of settings")
        return {name: _setting(name, value) for name, value in table.items()}


def _setting(name: str, value: Any) -> Value:
    if name not in FIELDS:
        raise ChoiceError("setting", name, FIELDS)
    checked_value: Value = checked(name, value)
    return checked_value


def _allowed(where: Any) -> dict[str, tuple[Value, ...]]:
    if not isinstance(where, dict):
        raise SpecError("where must be a table, { depth = [2, 5] }")
    return {name: tuple(value) if isinstance(value, list) else (value,) for name, value in where.items()}


def _rows(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``{a = 1, b = [2, 3]}`` → ``{a: 1, b: 2}, {a: 1, b: 3}``."""
    lengths = {len(value) for value in table.values() if isinstance(value, list)}
    if len(lengths) > 1:
        raise SpecError(f"lists of {' and '.join(map(str, sorted(lengths)))} entries do not go together")
    return [
        {name: value[row] if isinstance(value, list) else value for name, value in table.items()}
        for row in range(lengths.pop() if lengths else 1)
    ]


def _one_of(axis: str, value: Any, values: tuple[Value, ...] | None) -> Value:
    if values is None:
        raise SpecError(f"{axis} is not an axis of the grid", remedy="axes are the settings with a list in [grid]")
    if value not in values:
        raise ChoiceError(axis, value, map(str, values))
    result: Value = value
    return result


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{name} must be a number, got {value!r}", where=name)
    return value


@contextmanager
def _within(place: str) -> Iterator[None]:
    """Errors from here on are told with this place before theirs."""
    try:
        yield
    except EquipoiseError as error:
        where = ", ".join(part for part in (place, error.where) if part)
        raise SpecError(error.what, where=where, remedy=error.remedy) from error
