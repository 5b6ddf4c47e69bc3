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

from equipoise.data import load
from equipoise.data.catalog import CATALOG, DatasetInfo
from equipoise.data.load import LOADERS, dataset_problems, load_dataset
from equipoise.errors import ChecksumError, ChoiceError, DataOptionError

REAL = [name for name, info in CATALOG.items() if info.files]
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


@pytest.mark.parametrize("name", REAL)
def test_loaded_sizes_equal_the_published_ones(real_data: Path, name: str) -> None:
    data, info = load_dataset(name, real_data), CATALOG[name]
    assert (data.num_nodes, data.num_edges, data.num_features) == (info.nodes, info.edges, info.features)
    assert data.y.unique().tolist() == list(range(info.classes))
    assert split(data) == info.split
    assert data.y[data.test_mask].bincount().max() == info.majority
    assert (data.name, data.classes) == (name, info.classes)
    assert data.x.dtype == torch.float
    assert data.y.shape == (info.nodes,)
    assert all(data[mask].dtype == torch.bool and data[mask].shape == (info.nodes,) for mask in MASKS)


def test_synthetic_sizes_equal_the_catalogue() -> None:
    data, info = load_dataset("Synthetic-Citation"), CATALOG["synthetic-citation"]
    assert (data.num_nodes, data.num_edges, data.num_features) == (info.nodes, info.edges, info.features)
    assert (data.name, data.classes, split(data)) == (info.name, info.classes, info.split)
    assert data.y[data.test_mask].bincount().max() == info.majority


def test_user_folder_is_not_changed(real_data: Path, tmp_path: Path, cache: Path) -> None:
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


def test_file_with_wrong_checksum_is_not_unpickled(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(real_data / "Planetoid" / "Cora", tmp_path / "Planetoid" / "Cora")
    changed = tmp_path / "Planetoid/Cora/raw/ind.cora.graph"
    changed.chmod(0o644)
    changed.write_bytes(pickle.dumps({0: [1]}, protocol=4))
    unpickled = []
    monkeypatch.setattr(load, "unpickle", unpickled.append)
    with pytest.raises(ChecksumError, match=r"ind\.cora\.graph"):
        load_dataset("cora", tmp_path)
    assert unpickled == []


def test_synthetic_file_with_wrong_checksum_is_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above without real data: every file is a valid pickle, and all checksums but the last are right."""
    content = pickle.dumps({0: [1]}, protocol=4)
    checksum = hashlib.sha256(content).hexdigest()
    files = [dataclasses.replace(file, sha256=checksum) for file in CATALOG["cora"].files[:-1]]
    files.append(CATALOG["cora"].files[-1])
    for file in files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(content)
    info: DatasetInfo = dataclasses.replace(CATALOG["cora"], files=tuple(files))
    monkeypatch.setattr(load, "dataset_info", lambda _: info)
    unpickled = []
    monkeypatch.setattr(load, "unpickle", unpickled.append)
    with pytest.raises(ChecksumError, match=r"ind\.cora\.test\.index"):
        load_dataset("cora", tmp_path)
    assert unpickled == []


def test_keep_isolated_nodes_of_citeseer(real_data: Path) -> None:
    assert split(load_dataset("citeseer", real_data)) == (120, 494, 988)
    assert split(load_dataset("citeseer", real_data, keep_isolated=True)) == (120, 500, 1000)


def test_undirected_adds_reverse_edges(real_data: Path) -> None:
    stored, both = load_dataset("texas", real_data), load_dataset("texas", real_data, undirected=True)
    assert not is_undirected(stored.edge_index)
    pairs = {(a, b) for edge in stored.edge_index.t().tolist() for a, b in (edge, edge[::-1])}
    assert {tuple(edge) for edge in both.edge_index.t().tolist()} == pairs
    assert both.num_edges == len(pairs)


def test_citation_graphs_are_undirected(real_data: Path) -> None:
    one, other = load_dataset("cora", real_data), load_dataset("cora", real_data, undirected=True)
    assert is_undirected(one.edge_index)
    assert one.num_edges == other.num_edges


@pytest.mark.parametrize("name", ["minesweeper", "chameleon-filtered"])
def test_data_sets_beyond_the_paper_are_undirected(real_data: Path, name: str) -> None:
    data, other = load_dataset(name, real_data), load_dataset(name, real_data, split=0)
    assert is_undirected(data.edge_index)
    assert not torch.equal(data.train_mask, other.train_mask)


def test_splits_have_equal_sizes_and_different_nodes(real_data: Path) -> None:
    one, other = load_dataset("cornell", real_data), load_dataset("cornell", real_data, split=0)
    assert not torch.equal(one.train_mask, other.train_mask)
    assert split(one) == split(other)


def test_seed_changes_the_synthetic_graph() -> None:
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
def test_unsupported_option_raises_before_reading(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(DataOptionError, match=f"has no option '{next(iter(options))}'") as caught:
        load_dataset(name, "/there/is/no/such/folder", **options)
    assert CATALOG[name].title in str(caught.value)


def test_unknown_name_raises() -> None:
    with pytest.raises(ChoiceError, match="did you mean 'cora'"):
        load_dataset("corra")


def test_missing_and_changed_files_are_reported(server: Any, tmp_path: Path) -> None:
    tiny = server.offer_dataset()
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "one.bin").write_bytes(b"changed")
    assert dataset_problems(tiny, tmp_path) == ["tiny/raw/two.bin is missing", "tiny/one.bin: SHA-256 differs"]
    assert server.requests == []


def test_verification_does_not_change_the_cache(server: Any, cache: Path) -> None:
    tiny = server.offer_dataset()
    (cache / "tiny").mkdir(parents=True)
    (cache / "tiny" / "one.bin").write_bytes(b"changed")
    assert len(dataset_problems(tiny)) == 2
    assert server.requests == []
    assert (cache / "tiny" / "one.bin").read_bytes() == b"changed"


@pytest.mark.parametrize("size", ["nodes", "edges", "features", "classes"])
def test_wrong_size_is_reported(size: str) -> None:
    info = CATALOG["synthetic-citation"]
    wrong = dataclasses.replace(info, **{size: 1})
    assert dataset_problems(wrong) == [f"{size}: {getattr(info, size)}, expected 1"]


def test_wrong_split_is_reported() -> None:
    wrong = dataclasses.replace(CATALOG["synthetic-citation"], split=(1, 2, 3))
    assert dataset_problems(wrong) == ["split: (140, 500, 1000), expected (1, 2, 3)"]


@pytest.mark.parametrize("name", CATALOG)
def test_real_data_sets_have_no_problems(real_data: Path, name: str) -> None:
    assert dataset_problems(CATALOG[name], real_data) == []


def test_damaged_real_file_is_reported(real_data: Path, tmp_path: Path) -> None:
    shutil.copytree(real_data / "heterophilous", tmp_path / "heterophilous")
    path = tmp_path / "heterophilous" / "texas.npz"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    assert dataset_problems(CATALOG["texas"], tmp_path) == ["heterophilous/texas.npz: SHA-256 differs"]
