from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.data.catalog import CATALOG
from equipoise.data.folders import cache_folder, data_folder, missing_files, user_folder


def test_root_comes_before_the_variable_and_that_before_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder() == cache
    monkeypatch.setenv("EQUIPOISE_DATA", "/theirs")
    assert data_folder() == Path("/theirs")
    assert data_folder("/mine") == Path("/mine")


def test_an_empty_variable_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", "")
    assert user_folder() is None
    assert data_folder() == cache


def test_home_may_be_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert user_folder("~/graphs") == Path("/home/someone/graphs")


@pytest.mark.parametrize(
    ("platform", "below_home"), [("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData/Local")]
)
def test_the_cache_is_where_the_platform_has_it(
    platform: str, below_home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr("sys.platform", platform)
    assert cache_folder() == Path.home() / below_home / "equipoise" / "data" / "raw"


def test_missing_files_are_those_that_are_not_there(tmp_path: Path) -> None:
    texas = CATALOG["texas"]
    assert missing_files(texas, tmp_path) == list(texas.files)
    (tmp_path / "heterophilous").mkdir()
    (tmp_path / "heterophilous" / "texas.npz").write_bytes(b"")
    assert missing_files(texas, tmp_path) == []
