"""A part that does not fit the job, or is not what was written, is refused in words."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.distributed.parts.files import MANIFEST
from equipoise.errors import DistributedError, PartitionError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("partition") / "parts"
    eq.partition(eq.load_dataset("synthetic-citation"), 2, folder, method="blocks")
    return folder


@pytest.fixture
def parts(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "parts"))


def test_the_rank_comes_from_torchrun(written, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert eq.load_part(written).rank == 1


def test_one_part_needs_no_job(tmp_path):
    eq.partition(eq.load_dataset("synthetic-citation"), 1, tmp_path / "parts")
    part = eq.load_part(tmp_path / "parts")
    assert (part.rank, len(part.own), len(part.halo)) == (0, 1750, 0)


def test_the_rank_comes_from_a_process_group(written, monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    assert eq.load_part(written).rank == 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_wrong_number_of_ranks(written, ranks, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    with pytest.raises(PartitionError, match=f"has 2 parts, but the job has {ranks} rank"):
        eq.load_part(written)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_an_environment_without_numbers(written, name, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, "two")
    with pytest.raises(DistributedError, match=f"(?s){name} is not an integer.*'two'"):
        eq.load_part(written)


@pytest.mark.parametrize("rank", [-1, 2, "0", 0.0, True])
def test_no_such_rank(written, rank):
    with pytest.raises(PartitionError, match="choose a rank from 0 to 1"):
        eq.load_part(written, rank)


def test_a_machine_needs_only_its_own_part(parts):
    shutil.rmtree(parts / "part-1")
    assert eq.load_part(parts, 0).rank == 0
    with pytest.raises(PartitionError, match="part 1 is missing"):
        eq.load_part(parts, 1)


@pytest.mark.parametrize("name", ["own", "halo", "edge_index", "send", "x", "y", "train_mask"])
def test_every_altered_file_is_refused(parts, name):
    path = parts / "part-0" / f"{name}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(PartitionError, match=rf"(?s){name}.npy was altered.*SHA-256"):
        eq.load_part(parts, 0)
    eq.load_part(parts, 1)  # the other part is intact
    eq.load_part(parts, 0, verify=False)  # not looked at


@pytest.mark.parametrize("verify", [True, False])
def test_a_truncated_file_is_refused_also_without_checksums(parts, verify):
    path = parts / "part-0" / "x.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(PartitionError, match=r"x\.npy was altered or is incomplete"):
        eq.load_part(parts, 0, verify=verify)


def test_files_of_another_partition_are_refused_without_checksums(parts):
    shutil.copy(parts / "part-1" / "x.npy", parts / "part-0" / "x.npy")
    with pytest.raises(PartitionError, match="expected <f4 of shape"):
        eq.load_part(parts, 0, verify=False)


def test_a_missing_file_is_named(parts):
    (parts / "part-0" / "halo.npy").unlink()
    with pytest.raises(PartitionError, match=r"part 0 has no file halo.npy"):
        eq.load_part(parts, 0)


def edit_manifest(folder, **changes):
    content = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(content | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "has format version 2, this version of equipoise reads 1"),
        ({"format": "something else"}, "not a partition of equipoise"),
        ({"edge_cut": 0}, "its fingerprint differs"),
        ({"ranks": []}, "its fingerprint differs"),
        ({"ranks": "none"}, "manifest.json was altered"),
        ({"extra": 1}, "manifest.json was altered"),
    ],
)
def test_an_altered_manifest_is_refused(parts, changes, message):
    edit_manifest(parts, **changes)
    with pytest.raises(PartitionError, match=message):
        eq.load_part(parts, 0)


@pytest.mark.parametrize(
    ("content", "message"), [("{", "not readable"), ("[]", "not a partition"), ("", "not readable")]
)
def test_a_manifest_that_is_none(parts, content, message):
    (parts / MANIFEST).write_text(content)
    with pytest.raises(PartitionError, match=message):
        eq.load_part(parts, 0)


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(PartitionError, match=r"there is no manifest\.json"):
        eq.load_part(tmp_path)
    with pytest.raises(PartitionError, match="there is no folder"):
        eq.load_part(tmp_path / "nowhere")
    for argument in (None, 3):
        with pytest.raises(PartitionError, match="expected the folder of a partition"):
            eq.load_part(argument)


def test_a_pickle_is_never_loaded(parts):
    np.save(parts / "part-0" / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(PartitionError, match="altered"):
        eq.load_part(parts, 0, verify=False)


def test_writing_to_a_part_does_not_change_its_files(parts):
    part = eq.load_part(parts, 0)
    part.x.zero_()
    assert not eq.load_part(parts, 0).x.equal(part.x)


def test_ranks_of_a_partition_share_its_manifest(written):
    first, second = (eq.load_part(written, rank).manifest for rank in (0, 1))
    assert first == second
    assert first.num_classes == 7
    assert first.num_features == 500


def test_the_fingerprint_tells_partitions_apart(written, tmp_path):
    data = eq.load_dataset("synthetic-citation")
    data.x = data.x.clone()
    data.x[0, 0] += 1
    other = eq.partition(data, 2, tmp_path / "parts", method="blocks")
    assert other.fingerprint != eq.load_part(written, 0).manifest.fingerprint
    assert torch.equal(eq.load_part(written, 0).edge_index, eq.load_part(tmp_path / "parts", 0).edge_index)
