from __future__ import annotations

import io
import os
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, random_array
from torch_geometric.data import Data
from torch_geometric.io import read_planetoid_data
from torch_geometric.transforms import NormalizeFeatures

from equipoise.data.load import ALLOWED_GLOBALS, SPLITS, read_heterophilous, read_planetoid, unpickle
from equipoise.errors import DataError, DataOptionError, UnsafePickleError

KEYS = ("x", "y", "edge_index", "train_mask", "val_mask", "test_mask")


class Command:
    """Pickles as a call of ``os.system``."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_equal(data: Data, expected: Data) -> None:
    for key in KEYS:
        assert torch.equal(data[key], expected[key]), key


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("wrap", [lambda command: command, lambda command: {0: [command]}])
def test_malicious_pickle_is_rejected_without_side_effects(tmp_path: Path, protocol: int, wrap: Any) -> None:
    victim = tmp_path / "victim"
    evil = pickle.dumps(wrap(Command(f"touch {victim}")), protocol=protocol)
    with pytest.raises(UnsafePickleError, match=rf"{os.system.__module__}\.system"):
        unpickle(evil)
    assert not victim.exists()
    pickle.loads(evil)
    assert victim.exists(), "the pickle is harmless, so the test proves nothing"


@pytest.mark.parametrize("name", ["eval", "exec", "getattr", "__import__", "open"])
@pytest.mark.parametrize("module", ["builtins", "__builtin__"])
def test_builtins_are_rejected(module: str, name: str) -> None:
    with pytest.raises(UnsafePickleError, match=rf"{module}\.{name}"):
        unpickle(f"c{module}\n{name}\n.".encode())


@given(st.text("abcdefgnopsy_.", min_size=1), st.text("abcdefgnopsy_.", min_size=1))
def test_names_not_allowed_are_rejected(module: str, name: str) -> None:
    if (module, name) not in ALLOWED_GLOBALS:
        with pytest.raises(UnsafePickleError, match="refers to") as caught:
            unpickle(f"c{module}\n{name}\n.".encode())
        assert f"{module}.{name}," in str(caught.value)


@pytest.mark.parametrize(("module", "name"), ALLOWED_GLOBALS)
def test_names_of_all_library_versions_resolve(module: str, name: str) -> None:
    resolved = unpickle(f"c{module}\n{name}\n.".encode())
    assert resolved is ALLOWED_GLOBALS[module, name]
    assert resolved.__name__ == name


def test_round_trip_of_the_types_in_the_files() -> None:
    matrix = csr_matrix(random_array((5, 7), density=0.4, rng=0, dtype=np.float32))
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    graph = defaultdict(list, {0: [1, 2], 2: [0]})
    loaded = unpickle(pickle.dumps([matrix, array, graph], protocol=4))
    assert (loaded[0] != matrix).nnz == 0
    assert np.array_equal(loaded[1], array)
    assert loaded[2] == graph
    assert loaded[2][9] == []


@pytest.fixture
def planetoid_files(tmp_path: Path) -> Path:
    """A random data set of 620 nodes with shuffled test nodes, gaps between them, self-loops and duplicate edges."""
    rng = np.random.default_rng(0)
    known, test, features, classes = 560, rng.permutation(np.arange(560, 620))[:40], 30, 4
    test = np.append(test[(test != 619) & (test != 560)], [619, 560])
    graph = defaultdict(list)
    for source, target in rng.integers(0, 560, (900, 2)).tolist():
        graph[source] += [target, target, source]
        graph[target].append(source)
    parts = {
        "x": csr_matrix(random_array((10, features), density=0.2, rng=1)),
        "allx": csr_matrix(random_array((known, features), density=0.2, rng=2) * 3),
        "tx": csr_matrix(random_array((len(test), features), density=0.2, rng=3)),
        "y": np.eye(classes, dtype=np.int32)[rng.integers(0, classes, 10)],
        "ally": np.eye(classes, dtype=np.int32)[rng.integers(0, classes, known)],
        "ty": np.eye(classes, dtype=np.int32)[rng.integers(0, classes, len(test))],
        "graph": graph,
    }
    for part, value in parts.items():
        (tmp_path / f"ind.citeseer.{part}").write_bytes(pickle.dumps(value, protocol=4))
    (tmp_path / "ind.citeseer.test.index").write_text("".join(f"{node}\n" for node in test))
    return tmp_path


def test_random_data_set_equals_that_of_pyg(planetoid_files: Path) -> None:
    data = read_planetoid(contents(planetoid_files), "citeseer")
    assert_equal(data, NormalizeFeatures()(read_planetoid_data(str(planetoid_files), "citeseer")))
    not_stored = ~data.test_mask[560:]
    assert not_stored.any()
    assert not data.x[560:][not_stored].any()


def test_isolated_nodes_are_removed_from_the_masks_only(planetoid_files: Path) -> None:
    full = read_planetoid(contents(planetoid_files), "citeseer", keep_isolated=True)
    data = read_planetoid(contents(planetoid_files), "citeseer", keep_isolated=False)
    isolated = torch.ones(620, dtype=torch.bool)
    isolated[data.edge_index] = False
    assert torch.equal(data.x, full.x)
    for key in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(data[key], full[key] & ~isolated)
    assert int(full.test_mask.sum()) > int(data.test_mask.sum()) == 0


@pytest.mark.parametrize("name", ["Cora", "CiteSeer", "PubMed"])
def test_real_data_sets_equal_those_of_pyg(real_data: Path, name: str) -> None:
    folder = real_data / "Planetoid" / name / "raw"
    expected = NormalizeFeatures()(read_planetoid_data(str(folder), name.lower()))
    assert_equal(read_planetoid(contents(folder), name.lower()), expected)


HETEROPHILOUS = ["chameleon", "squirrel", "actor", "cornell", "texas", "wisconsin"]


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    one_hot = np.eye(SPLITS, 12, dtype=bool)
    defaults = {
        "node_features": np.arange(36, dtype=np.float32).reshape(12, 3),
        "node_labels": np.arange(12) % 5,
        "edges": np.array([[0, 1], [2, 1], [3, 3]]),
        "train_masks": one_hot,
        "val_masks": np.roll(one_hot, 1, axis=1),
        "test_masks": np.roll(one_hot, 2, axis=1),
    }
    return defaults | changes


def npz(values: dict[str, np.ndarray]) -> dict[str, bytes]:
    buffer = io.BytesIO()
    np.savez(buffer, **values)
    return {"tiny.npz": buffer.getvalue()}


def test_features_and_edges_equal_the_stored_ones() -> None:
    data = read_heterophilous(npz(arrays()), "tiny")
    assert torch.equal(data.x, torch.arange(36.0).view(12, 3))
    assert data.edge_index.tolist() == [[0, 2, 3], [1, 1, 3]]
    assert data.y.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize("split", range(SPLITS))
def test_split_selects_the_masks(split: int) -> None:
    data = read_heterophilous(npz(arrays()), "tiny", split=split)
    indices = [mask.nonzero().tolist() for mask in (data.train_mask, data.val_mask, data.test_mask)]
    assert indices == [[[split]], [[split + 1]], [[split + 2]]]


def test_default_split_is_one() -> None:
    assert read_heterophilous(npz(arrays()), "tiny").train_mask.nonzero().tolist() == [[1]]


@pytest.mark.parametrize("split", [-1, 10, 2.5])
def test_unknown_split_raises(split: Any) -> None:
    with pytest.raises(DataOptionError, match=f"no split {split}"):
        read_heterophilous(npz(arrays()), "tiny", split=split)


def test_pickled_objects_are_rejected() -> None:
    with pytest.raises(DataError, match="allow_pickle=False"):
        read_heterophilous(npz(arrays(node_labels=np.array([{}] * 12, dtype=object))), "tiny")


@pytest.mark.parametrize("name", HETEROPHILOUS)
def test_every_real_node_is_in_one_mask_per_split(real_data: Path, name: str) -> None:
    contents = {f"{name}.npz": (real_data / "heterophilous" / f"{name}.npz").read_bytes()}
    for split in range(SPLITS):
        data = read_heterophilous(contents, name, split=split)
        uses = data.train_mask.long() + data.val_mask.long() + data.test_mask.long()
        assert bool((uses == 1).all())


def bad_columns(matrix: csr_matrix) -> csr_matrix:
    matrix.indices[0] = 10**6
    return matrix


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("allx", b"not a pickle"),
        ("allx", pickle.dumps(bad_columns(csr_matrix(np.ones((560, 30), np.float32))))),
        ("ally", pickle.dumps(np.ones(3))),
        ("graph", pickle.dumps({0: [10**9]})),
        ("graph", pickle.dumps({0: [-5]})),
        ("test.index", b"99999999999999999999"),
    ],
)
def test_malformed_citation_files_are_named(planetoid_files: Path, part: str, content: bytes) -> None:
    files = contents(planetoid_files) | {f"ind.citeseer.{part}": content}
    with pytest.raises(DataError, match=r"ind\.citeseer\.\* cannot be parsed"):
        read_planetoid(files, "citeseer")


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("node_features", np.ones((4, 3))),
        ("node_labels", np.ones(6)),
        ("edges", np.array([[0, 6]])),
        ("edges", np.array([[0, -1]])),
        ("edges", np.ones((2, 2, 2), int)),
        ("train_masks", np.ones((10, 6), int)),
        ("val_masks", np.ones((1, 6), bool)),
    ],
)
def test_malformed_arrays_are_named(name: str, array: Any) -> None:
    arrays = {"node_features": np.ones((6, 3)), "node_labels": np.zeros(6, int), "edges": np.array([[0, 5]])}
    arrays |= dict.fromkeys(("train_masks", "val_masks", "test_masks"), np.ones((10, 6), bool))
    for content in (arrays, arrays | {name: array}):
        file = io.BytesIO()
        np.savez(file, **content)
        if content is arrays:
            assert read_heterophilous({"x.npz": file.getvalue()}, "x").num_nodes == 6
            continue
        with pytest.raises(DataError, match=r"x\.npz cannot be parsed"):
            read_heterophilous({"x.npz": file.getvalue()}, "x")
