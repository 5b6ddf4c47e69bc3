from __future__ import annotations

import dataclasses
import hashlib
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.utils import is_undirected

from equipoise.data import load, planetoid
from equipoise.data.catalog import CATALOG, Entry
from equipoise.data.load import LOADERS, load_dataset
from equipoise.errors import ChecksumError, ChoiceError, DataOptionError

NINE = [name for name, entry in CATALOG.items() if entry.files]
MASKS = ("train_mask", "val_mask", "test_mask")


def split(data: Any) -> tuple[int, ...]:
    return tuple(int(data[mask].sum()) for mask in MASKS)


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.stat().st_mode)
        for path in [folder, *folder.rglob("*")]
    }


def test_every_data_set_has_a_loader() -> None:
    assert list(LOADERS) == list(CATALOG)


@pytest.mark.parametrize("name", NINE)
def test_the_published_counts_come_out(real_data: Path, name: str) -> None:
    data, entry = load_dataset(name, real_data), CATALOG[name]
    assert (data.num_nodes, data.num_edges, data.num_features) == (entry.nodes, entry.edges, entry.features)
    assert data.y.unique().tolist() == list(range(entry.classes))
    assert split(data) == entry.split
    assert (data.name, data.classes) == (name, entry.classes)
    assert data.x.dtype == torch.float
    assert data.y.shape == (entry.nodes,)
    assert all(data[mask].dtype == torch.bool and data[mask].shape == (entry.nodes,) for mask in MASKS)


def test_synthetic_citation_has_the_counts_of_the_catalog() -> None:
    data, entry = load_dataset("Synthetic-Citation"), CATALOG["synthetic-citation"]
    assert (data.num_nodes, data.num_edges, data.num_features) == (entry.nodes, entry.edges, entry.features)
    assert (data.name, data.classes, split(data)) == (entry.name, entry.classes, entry.split)


def test_a_users_folder_is_as_before(real_data: Path, tmp_path: Path, cache: Path) -> None:
    own = tmp_path / "own"
    for name in ("Planetoid/Cora", "heterophilous"):
        shutil.copytree(real_data / name, own / name)
    for path in sorted(own.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = snapshot(own)
    load_dataset("cora", own)
    load_dataset("texas", own, split=3, undirected=True)
    assert snapshot(own) == before
    assert not cache.exists()
    for path in own.rglob("*"):
        path.chmod(0o755)


def test_a_file_with_another_checksum_is_not_unpickled(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(real_data / "Planetoid" / "Cora", tmp_path / "Planetoid" / "Cora")
    changed = tmp_path / "Planetoid/Cora/raw/ind.cora.graph"
    changed.chmod(0o644)
    changed.write_bytes(pickle.dumps({0: [1]}, protocol=4))
    unpickled = []
    monkeypatch.setattr(planetoid, "unpickle", unpickled.append)
    with pytest.raises(ChecksumError, match=r"ind\.cora\.graph"):
        load_dataset("cora", tmp_path)
    assert unpickled == []


def test_a_pickle_with_another_checksum_is_not_unpickled_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, without real data: every file is a good pickle, and all checksums but the last are right."""
    content = pickle.dumps({0: [1]}, protocol=4)
    right = hashlib.sha256(content).hexdigest()
    files = [dataclasses.replace(file, sha256=right) for file in CATALOG["cora"].files[:-1]]
    files.append(CATALOG["cora"].files[-1])
    for file in files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(content)
    entry: Entry = dataclasses.replace(CATALOG["cora"], files=tuple(files))
    monkeypatch.setattr(load, "catalog_entry", lambda _: entry)
    unpickled = []
    monkeypatch.setattr(planetoid, "unpickle", unpickled.append)
    with pytest.raises(ChecksumError, match=r"ind\.cora\.test\.index"):
        load_dataset("cora", tmp_path)
    assert unpickled == []


def test_isolated_nodes_of_citeseer_may_be_kept(real_data: Path) -> None:
    assert split(load_dataset("citeseer", real_data)) == (120, 494, 988)
    assert split(load_dataset("citeseer", real_data, keep_isolated=True)) == (120, 500, 1000)


def test_edges_may_be_made_undirected(real_data: Path) -> None:
    stored, both = load_dataset("texas", real_data), load_dataset("texas", real_data, undirected=True)
    assert not is_undirected(stored.edge_index)
    pairs = {(a, b) for edge in stored.edge_index.t().tolist() for a, b in (edge, edge[::-1])}
    assert {tuple(edge) for edge in both.edge_index.t().tolist()} == pairs
    assert both.num_edges == len(pairs)


def test_citation_graphs_are_undirected_already(real_data: Path) -> None:
    one, other = load_dataset("cora", real_data), load_dataset("cora", real_data, undirected=True)
    assert is_undirected(one.edge_index)
    assert one.num_edges == other.num_edges


def test_another_split_has_other_nodes_of_the_same_number(real_data: Path) -> None:
    one, other = load_dataset("cornell", real_data), load_dataset("cornell", real_data, split=0)
    assert not torch.equal(one.train_mask, other.train_mask)
    assert split(one) == split(other)


def test_the_seed_is_the_synthetic_graphs() -> None:
    assert not torch.equal(load_dataset("synthetic-citation").y, load_dataset("synthetic-citation", seed=1).y)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cora", {"split": 2}),
        ("cora", {"keep_isolated": True}),
        ("citeseer", {"seed": 1}),
        ("texas", {"keep_isolated": True}),
        ("squirrel", {"seed": 7}),
        ("synthetic-citation", {"split": 0}),
    ],
)
def test_an_option_that_makes_no_sense_is_an_error_before_anything_is_read(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(DataOptionError, match=f"has no option '{next(iter(options))}'") as caught:
        load_dataset(name, "/there/is/no/such/folder", **options)
    assert CATALOG[name].title in str(caught.value)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ChoiceError, match="did you mean 'cora'"):
        load_dataset("corra")
