from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from equipoise.data.catalog import CATALOG
from equipoise.data.verify import faults


def test_what_is_missing_and_what_has_changed_is_said(server: Any, tmp_path: Path) -> None:
    tiny = server.offer_dataset()
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "one.bin").write_bytes(b"changed")
    assert faults(tiny, tmp_path) == ["tiny/raw/two.bin is not there", "tiny/one.bin: its SHA-256 differs"]
    assert server.requests == []


def test_nothing_is_mended_in_the_cache(server: Any, cache: Path) -> None:
    tiny = server.offer_dataset()
    (cache / "tiny").mkdir(parents=True)
    (cache / "tiny" / "one.bin").write_bytes(b"changed")
    assert len(faults(tiny)) == 2
    assert server.requests == []
    assert (cache / "tiny" / "one.bin").read_bytes() == b"changed"


@pytest.mark.parametrize("size", ["nodes", "edges", "features", "classes"])
def test_a_wrong_size_is_said(size: str) -> None:
    entry = CATALOG["synthetic-citation"]
    wrong = dataclasses.replace(entry, **{size: 1})
    assert faults(wrong) == [f"{size}: {getattr(entry, size)}, should be 1"]


def test_a_wrong_split_is_said() -> None:
    wrong = dataclasses.replace(CATALOG["synthetic-citation"], split=(1, 2, 3))
    assert faults(wrong) == ["split: (140, 500, 1000), should be (1, 2, 3)"]


@pytest.mark.parametrize("name", CATALOG)
def test_all_is_well_with_the_real_ones(real_data: Path, name: str) -> None:
    assert faults(CATALOG[name], real_data) == []


def test_a_damaged_real_file_is_found(real_data: Path, tmp_path: Path) -> None:
    shutil.copytree(real_data / "heterophilous", tmp_path / "heterophilous")
    path = tmp_path / "heterophilous" / "texas.npz"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    assert faults(CATALOG["texas"], tmp_path) == ["heterophilous/texas.npz: its SHA-256 differs"]
