"""Files: experiments, tables, stores, checkpoints, recordings and raw data, damaged or with values of every kind."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from equipoise import Stack
from equipoise.data.load import read_heterophilous, read_planetoid
from equipoise.errors import DataError, SpecError, StoreError, TrainingError
from equipoise.experiments.checkpoint import Checkpoint
from equipoise.experiments.experiment import Experiment
from equipoise.experiments.parser import FILE_FIELDS, load_experiment, parse_experiment
from equipoise.experiments.result import OUTCOMES, Result
from equipoise.experiments.results_csv import COLUMNS, read_csv, write_csv
from equipoise.experiments.spec import FIELDS, RunSpec
from equipoise.experiments.store import Store
from equipoise.training.history import History, TrainingState
from equipoise.training.recording import Record, Recording
from tests.fuzz.mutations import EDITS, TEXTS, VALUES, damage
from tests.fuzz.runner import Target

# --- experiment files -------------------------------------------------------------------------------------------------

EXPERIMENT = """
title = "A table"
every = 25
draws = ["accuracy"]
notes = ["a note"]
[grid]
dataset = ["texas", "cora"]
init = ["xav", "bal-o"]
depth = [2, 5]
lr = 0.1
seed = [0, 1]
[[set]]
where = {dataset = ["cora"], depth = [5]}
lr = 0.05
[[published]]
dataset = "cora"
depth = 2
init = ["xav", "bal-o"]
accuracy = [70.0, 80.0]
[[claims]]
text = "better"
better = {init = "bal-o"}
worse = {init = "xav"}
[provenance]
lr = "the paper"
"""


def toml(value: Any) -> str:
    """A value in TOML's syntax, right for the most part."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) else repr(value)


NAMES = st.sampled_from([*FILE_FIELDS, *FIELDS, "where", "better", "worse", "text", "accuracy", "variant", "nonsense"])
TABLES = st.sampled_from(
    ["[grid]", "[[set]]", "[[published]]", "[[claims]]", "[provenance]", "[variants.a]", "[load.cora]"]
)


@st.composite
def experiments(draw: st.DrawFn) -> str:
    """A valid file with lines replaced or added, or damaged as bytes."""
    if draw(st.booleans()):
        return damage(EXPERIMENT.encode(), draw(EDITS)).decode(errors="replace")
    lines = EXPERIMENT.splitlines()
    for _ in range(draw(st.integers(1, 4))):
        line = draw(st.one_of(st.builds(lambda name, value: f"{name} = {toml(value)}", NAMES, VALUES), TABLES))
        position = draw(st.integers(0, len(lines) - 1))
        lines[position : position + draw(st.integers(0, 1))] = [line]
    return "\n".join(lines)


def check_experiment(text: str) -> None:
    """An experiment whose cells have valid settings, or a named error."""
    try:
        experiment = parse_experiment(text, "fuzz", "fuzz.toml")
    except SpecError:
        return
    assert isinstance(experiment, Experiment)
    for cell in experiment.cells:
        for spec in cell.specs:
            assert RunSpec.from_dict(spec.to_dict()) == spec
    Path("fuzz.toml").write_text(text, encoding="utf-8", newline="")
    assert load_experiment("fuzz.toml").cells == experiment.cells


# --- tables -----------------------------------------------------------------------------------------------------------


def results() -> list[Result]:
    """Three results, one of a failed run."""
    finished = {"test_accuracy": 0.5, "val_accuracy": 0.6, "best_epoch": 3, "epochs": 5, "seconds": 1.5}
    specs = [RunSpec(dataset="cora", depth=depth, lr=0.1, seed=1) for depth in (2, 5, 10)]
    curves = {"loss": np.ones(5, np.float32)}
    return [
        Result(spec=specs[0], outcome="finished", curves=curves, **finished).with_environment(),
        Result(spec=specs[1], outcome="diverged", **finished).with_environment(),
        Result(spec=specs[2], outcome="failed", reason='"quoted", with a comma', traceback="line\nline"),
    ]


@cache
def table() -> str:
    """A valid table."""
    write_csv(results(), Path("valid.csv"))
    return Path("valid.csv").read_text(encoding="utf-8")


CELLS = st.one_of(TEXTS, st.sampled_from([*OUTCOMES, "1e400", "-0.0", "99999999999999999999999", "1_000", "٣", " 3"]))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Any], list[tuple[int, str, str]]]:
    """Edits of the bytes, and of cells by row and column."""
    if draw(st.booleans()):
        return draw(EDITS), []
    columns = st.sampled_from(COLUMNS)
    return [], draw(st.lists(st.tuples(st.integers(0, 2), columns, CELLS), min_size=1, max_size=3))


def check_table(value: tuple[list[Any], list[tuple[int, str, str]]]) -> None:
    """Results that a store takes and writes back unchanged; or a named error, and the store is as it was."""
    edits, cells = value
    content = damage(table().encode(), edits)
    if cells:
        rows = list(csv.DictReader(io.StringIO(table())))
        for number, column, text in cells:
            rows[number][column] = text
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, COLUMNS, quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
        content = buffer.getvalue().encode(errors="replace")
    path = Path("fuzz.csv")
    path.write_bytes(content)
    with Store("table.sqlite") as store:
        before = set(store.outcomes())
        try:
            store.merge(read_csv(path))
        except StoreError:
            assert set(store.outcomes()) == before, "half of the table was imported"
            return
        finally:
            store._connection.execute("DELETE FROM runs")
    read = list(read_csv(path))
    write_csv(read, Path("again.csv"))
    assert sorted(map(repr, read_csv(Path("again.csv")))) == sorted(map(repr, read))


# --- stores -----------------------------------------------------------------------------------------------------------


@cache
def store_file() -> bytes:
    """A valid store."""
    path = Path("valid.sqlite")
    recording = Recording(("convs.0",))
    recording.add(1, [Record("balance/c", 1, np.ones(3))])
    with Store(path) as store:
        for result in results():
            store.put(result)
        store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store._connection.execute("PRAGMA journal_mode = DELETE")
    return path.read_bytes()


SQL_VALUES = st.one_of(
    TEXTS, st.binary(max_size=8), st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
    st.sampled_from(["{}", "[]", '{"dataset": "cora"}', '{"dataset": 1, "depth": 2, "lr": 1}', "not json", "[" * 3000]),
)  # fmt: skip
STORE_COLUMNS = st.sampled_from(
    [
        "key",
        "spec",
        "outcome",
        "reason",
        "test_accuracy",
        "best_epoch",
        "epochs",
        "seconds",
        "versions",
        "when",
        "traceback",
    ]
)
STATEMENTS = st.sampled_from(
    ["DROP TABLE curves", "DROP TABLE runs", "PRAGMA user_version = 99", "PRAGMA user_version = 1", "DELETE FROM runs",
     "PRAGMA application_id = 7", "ALTER TABLE runs RENAME COLUMN epochs TO e", "UPDATE curves SET compressed = x'00'",
     f"UPDATE curves SET compressed = x'{zlib.compress(b'abc').hex()}'", "PRAGMA user_version = -1"]
)  # fmt: skip


@st.composite
def stores(draw: st.DrawFn) -> tuple[list[Any], list[tuple[str, Any]], list[str]]:
    """Edits of the bytes; or values of columns, and statements."""
    if draw(st.integers(0, 2)):
        return draw(EDITS), [], []
    changes = draw(st.lists(st.tuples(STORE_COLUMNS, SQL_VALUES), max_size=2))
    return [], changes, draw(st.lists(STATEMENTS, max_size=2))


def check_store(value: tuple[list[Any], list[tuple[str, Any]], list[str]]) -> None:
    """Results of the right types, or a named error; a file that is refused stays as it was."""
    edits, changes, statements = value
    path = Path("fuzz.sqlite")
    for leftover in Path().glob("fuzz.sqlite*"):
        leftover.unlink()
    path.write_bytes(damage(store_file(), edits))
    if changes or statements:
        connection = sqlite3.connect(path)
        for column, content in changes:
            connection.execute(f'UPDATE OR IGNORE runs SET "{column}" = ? WHERE rowid = 2', (content,))
        connection.commit()
        for statement in statements:
            try:
                connection.execute(statement)
            except sqlite3.Error:
                continue  # a table that an earlier statement dropped
        connection.commit()
        connection.close()
    try:
        with Store(path, read_only=True, timeout=0.1) as store:
            read = store.results(curves=True, recordings=True)
            store.running(), store.lock_owner(), store.recording_plans()
            store.merge(results())
    except StoreError:
        return
    for key, result in read.items():
        assert key == result.key, "a result under the key of another run"
        assert result.outcome in OUTCOMES
        for accuracy in (result.test_accuracy, result.val_accuracy):
            assert accuracy is None or (isinstance(accuracy, float) and 0 <= accuracy <= 1), f"accuracy {accuracy!r}"
        assert isinstance(result.epochs, int)
        assert all(curve.dtype == np.dtype("<f4") for curve in result.curves.values())


# --- checkpoints ------------------------------------------------------------------------------------------------------

KEY = "0123456789abcdef"


@cache
def checkpoint_file() -> bytes:
    """A valid checkpoint."""
    model = Stack("gatv2", [3, 8, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    Checkpoint(Path("valid.pt"), KEY).save(TrainingState.snapshot(model, optimizer, History()))
    return Path("valid.pt").read_bytes()


class Command:
    """Pickles as a call of ``os.system``."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch executed",)


OBJECTS: dict[str, Callable[[], Any]] = {
    "command": Command,
    "nested command": lambda: {"key": KEY, "versions": {}, "state": Command()},
    "tensor": lambda: torch.ones(3),
    "list": lambda: [1, 2],
    "no state": lambda: {"key": KEY},
    "none": lambda: None,
}


def check_checkpoint(value: tuple[list[Any], str]) -> None:
    """The state that was saved, or none; nothing in the file is executed."""
    edits, replacement = value
    buffer = io.BytesIO()
    if replacement in OBJECTS:
        torch.save(OBJECTS[replacement](), buffer)
    content = damage(buffer.getvalue() or checkpoint_file(), edits)
    path = Path("fuzz.pt")
    path.write_bytes(content)
    state = Checkpoint(path, KEY).load()
    assert not Path("executed").exists(), "the file was executed"
    if state is not None:
        intact = Checkpoint(Path("valid.pt"), KEY).load()
        assert intact is not None
        assert state.history == intact.history
        assert state.model.keys() == intact.model.keys()


# --- recordings -------------------------------------------------------------------------------------------------------


@cache
def recording_columns() -> dict[str, Any]:
    """The arrays of a valid recording."""
    recording = Recording(("convs.0", "convs.1"))
    recording.add(1, [Record("balance/c", 1, np.arange(3.0)), Record("train/loss", 0, np.array(1.5))])
    recording.add(25, [Record("balance/c", 2, np.arange(2.0))])
    with np.load(io.BytesIO(recording.to_bytes())) as file:
        return dict(file)


ARRAYS: dict[str, Callable[[], Any]] = {
    "empty": lambda: np.empty(0),
    "scalar": lambda: np.array(3),
    "text": lambda: np.array(["a", "b", "c"]),
    "matrix": lambda: np.ones((3, 3)),
    "nan": lambda: np.full(3, np.nan),
    "huge": lambda: np.full(3, 2**62),
    "negative": lambda: np.full(3, -(2**62)),
    "complex": lambda: np.ones(3, complex),
    "bool": lambda: np.ones(3, bool),
    "record": lambda: np.zeros(3, [("a", "i4")]),
    "bytes": lambda: np.array([b"a", b"b", b"c"]),
    "date": lambda: np.array(["2020-01-01"] * 3, "datetime64[D]"),
    "object": lambda: np.array([Command()] * 3, dtype=object),
    "float16": lambda: np.ones(5, np.float16),
    "missing": lambda: None,
}
REPLACEMENTS = st.tuples(
    st.sampled_from(["format", "layers", "epoch", "quantity", "layer", "neurons", "values"]),
    st.sampled_from(sorted(ARRAYS)),
)


def archive(arrays: dict[str, Any]) -> bytes:
    """An ``.npz`` file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: array for name, array in arrays.items() if array is not None})
    return buffer.getvalue()


def check_recording(value: tuple[list[Any], list[tuple[str, str]]]) -> None:
    """A recording that can be saved and drawn as a frame, or a named error."""
    edits, replacements = value
    columns = recording_columns() | {name: ARRAYS[kind]() for name, kind in replacements}
    path = Path("fuzz.npz")
    path.write_bytes(damage(archive(columns), edits))
    try:
        recording = Recording.load(path)
    except TrainingError:
        return
    finally:
        assert not Path("executed").exists(), "the file was executed"
    frame = recording.frame()
    again = Recording.load(io.BytesIO(recording.to_bytes()))
    assert again.frame().equals(frame)


# --- raw data ---------------------------------------------------------------------------------------------------------


@cache
def heterophilous_arrays() -> dict[str, Any]:
    """The arrays of a small data set."""
    masks = np.zeros((10, 6), bool)
    masks[:, :2] = True
    names = ("train_masks", "val_masks", "test_masks")
    arrays = {"node_features": np.ones((6, 4), np.float32), "node_labels": np.arange(6) % 3}
    return arrays | {"edges": np.array([[0, 1], [1, 2], [5, 0]])} | dict.fromkeys(names, masks)


DATA_NAMES = ("node_features", "node_labels", "edges", "train_masks", "val_masks", "test_masks")


def check_heterophilous(value: tuple[list[Any], list[tuple[str, str]]]) -> None:
    """A graph whose tensors fit together, or a named error."""
    edits, replacements = value
    arrays = heterophilous_arrays() | {name: ARRAYS[kind]() for name, kind in replacements}
    try:
        data = read_heterophilous({"fuzz.npz": damage(archive(arrays), edits)}, "fuzz")
    except DataError:
        return
    finally:
        assert not Path("executed").exists(), "the file was executed"
    data.validate()
    assert data.x.dim() == 2
    assert len(data.x) == len(data.y) == len(data.train_mask)
    assert data.train_mask.dtype == torch.bool


@cache
def planetoid_parts() -> dict[str, Any]:
    """The parts of a small citation graph: two training nodes, five hundred others, two test nodes."""
    known, stored = csr_matrix(np.eye(505, 4, dtype=np.float32)), csr_matrix(np.ones((2, 4), np.float32))
    labels = np.eye(3, dtype=np.int32)[np.arange(505) % 3]
    graph = defaultdict(list, {node: [(node + 1) % 507] for node in range(507)})
    return {
        "x": known[:2],
        "allx": known,
        "tx": stored,
        "y": labels[:2],
        "ally": labels,
        "ty": labels[:2],
        "graph": graph,
    }


def bad_csr() -> Any:
    """A sparse matrix with columns beyond its width."""
    matrix = csr_matrix(np.eye(505, 4, dtype=np.float32))
    matrix.indices[:] = 10**6
    return matrix


PARTS: dict[str, Callable[[], Any]] = {
    **{f"array {name}": build for name, build in ARRAYS.items()},
    "command": Command,
    "list": lambda: [1, 2],
    "graph": lambda: {0: [10**9], -5: ["a"]},
    "nested graph": lambda: {0: [[1]], 1: 7},
    "bad csr": bad_csr,
}


def check_planetoid(value: tuple[str, list[Any], str, str]) -> None:
    """A graph whose tensors fit together, or a named error; nothing in the file is executed."""
    part, edits, replacement, index = value
    parts = dict(planetoid_parts())
    if replacement:
        parts[part] = PARTS[replacement]()
    contents = {f"ind.fuzz.{name}": pickle.dumps(content, protocol=2) for name, content in parts.items()}
    contents[f"ind.fuzz.{part}"] = damage(contents[f"ind.fuzz.{part}"], edits)
    contents["ind.fuzz.test.index"] = index.encode()
    try:
        data = read_planetoid(contents, "fuzz")
    except DataError:
        return
    finally:
        assert not Path("executed").exists(), "the file was executed"
    data.validate()
    assert len(data.x) == len(data.y) == len(data.train_mask)


PLANETOID = st.tuples(
    st.sampled_from(["allx", "tx", "ally", "ty", "graph", "y"]),
    EDITS,
    st.sampled_from([""] * 8 + sorted(PARTS)),
    st.sampled_from(
        ["505\n506\n"] * 6 + ["", "505", "-1 4", "99999999999999999999", "a b", "505 505", "10000000 3", "\x00"]
    ),
)
DATA = st.tuples(EDITS, st.lists(st.tuples(st.sampled_from(DATA_NAMES), st.sampled_from(sorted(ARRAYS))), max_size=2))

FILES = (
    Target("experiment files", experiments(), check_experiment, count=14_000),
    Target("CSV tables", tables(), check_table, count=10_000),
    Target("SQLite stores", stores(), check_store, count=6_000),
    Target(
        "checkpoints", st.tuples(EDITS, st.sampled_from([""] * 12 + sorted(OBJECTS))), check_checkpoint, count=6_000
    ),
    Target("recordings", st.tuples(EDITS, st.lists(REPLACEMENTS, max_size=2)), check_recording, count=8_000),
    Target("npz data", DATA, check_heterophilous, count=8_000),
    Target("Planetoid data", PLANETOID, check_planetoid, count=8_000),
)
