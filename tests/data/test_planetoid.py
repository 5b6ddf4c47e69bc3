from __future__ import annotations

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

from equipoise.data.planetoid import ADMITTED, read_planetoid, unpickle
from equipoise.errors import UnsafePickleError

KEYS = ("x", "y", "edge_index", "train_mask", "val_mask", "test_mask")


class Command:
    """Pickles as a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_equal(ours: Data, theirs: Data) -> None:
    for key in KEYS:
        assert torch.equal(ours[key], theirs[key]), key


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("wrap", [lambda command: command, lambda command: {0: [command]}])
def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path: Path, protocol: int, wrap: Any) -> None:
    victim = tmp_path / "victim"
    evil = pickle.dumps(wrap(Command(f"touch {victim}")), protocol=protocol)
    with pytest.raises(UnsafePickleError, match=rf"{os.system.__module__}\.system"):
        unpickle(evil)
    assert not victim.exists()
    pickle.loads(evil)
    assert victim.exists(), "the pickle would have done it"


@pytest.mark.parametrize("name", ["eval", "exec", "getattr", "__import__", "open"])
@pytest.mark.parametrize("module", ["builtins", "__builtin__"])
def test_builtins_are_refused(module: str, name: str) -> None:
    with pytest.raises(UnsafePickleError, match=rf"{module}\.{name}"):
        unpickle(f"c{module}\n{name}\n.".encode())


@given(st.text("abcdefgnopsy_.", min_size=1), st.text("abcdefgnopsy_.", min_size=1))
def test_whatever_is_not_on_the_list_is_refused(module: str, name: str) -> None:
    if (module, name) not in ADMITTED:
        with pytest.raises(UnsafePickleError, match="asks for") as caught:
            unpickle(f"c{module}\n{name}\n.".encode())
        assert f"{module}.{name}," in str(caught.value)


@pytest.mark.parametrize(("module", "name"), ADMITTED)
def test_names_of_old_and_new_versions_mean_the_same(module: str, name: str) -> None:
    found = unpickle(f"c{module}\n{name}\n.".encode())
    assert found is ADMITTED[module, name]
    assert found.__name__ == name


def test_what_the_data_sets_hold_comes_back_as_it_was() -> None:
    matrix = csr_matrix(random_array((5, 7), density=0.4, rng=0, dtype=np.float32))
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    graph = defaultdict(list, {0: [1, 2], 2: [0]})
    back = unpickle(pickle.dumps([matrix, array, graph], protocol=4))
    assert (back[0] != matrix).nnz == 0
    assert np.array_equal(back[1], array)
    assert back[2] == graph
    assert back[2][9] == []


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A data set of 620 nodes, with everything that is special: gaps among shuffled test nodes, loops, double edges."""
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


def test_a_made_up_data_set_is_read_as_pyg_reads_it(made_up: Path) -> None:
    ours = read_planetoid(contents(made_up), "citeseer")
    assert_equal(ours, NormalizeFeatures()(read_planetoid_data(str(made_up), "citeseer")))
    absent = ~ours.test_mask[560:]
    assert absent.any()
    assert not ours.x[560:][absent].any()


def test_isolated_nodes_leave_the_masks_and_stay_in_the_graph(made_up: Path) -> None:
    kept = read_planetoid(contents(made_up), "citeseer", keep_isolated=True)
    data = read_planetoid(contents(made_up), "citeseer", keep_isolated=False)
    isolated = torch.ones(620, dtype=torch.bool)
    isolated[data.edge_index] = False
    assert torch.equal(data.x, kept.x)
    for key in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(data[key], kept[key] & ~isolated)
    assert int(kept.test_mask.sum()) > int(data.test_mask.sum()) == 0


@pytest.mark.parametrize("name", ["Cora", "CiteSeer", "PubMed"])
def test_the_real_ones_are_read_as_pyg_reads_them(real_data: Path, name: str) -> None:
    folder = real_data / "Planetoid" / name / "raw"
    theirs = NormalizeFeatures()(read_planetoid_data(str(folder), name.lower()))
    assert_equal(read_planetoid(contents(folder), name.lower()), theirs)
