from __future__ import annotations

import hashlib
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data.catalog import CATALOG, RawFile
from equipoise.data.download import download
from equipoise.data.files import is_intact, provide_files, read_file, read_files, unusable_files
from equipoise.errors import ChecksumError, DataError, MissingDataError


def never(*args: object) -> None:
    raise AssertionError("nothing may be fetched here")


def no_network(*args: object) -> None:
    raise OSError("Name or service not known")


def test_the_cache_is_filled_once(server: Any, cache: Path) -> None:
    tiny = server.offer_dataset()
    first = read_files(tiny)
    assert first == {"one.bin": b"one" * 1000, "two.bin": b"two" * 50_000}
    assert (cache / "tiny" / "raw" / "two.bin").is_file()
    assert read_files(tiny, fetch=never) == first
    assert server.requests == ["one.bin", "two.bin"]


def test_a_damaged_file_in_the_cache_is_fetched_again_and_only_that(server: Any, cache: Path) -> None:
    tiny = server.offer_dataset()
    read_files(tiny)
    server.requests.clear()
    (cache / "tiny" / "one.bin").write_bytes(b"damaged")
    assert read_files(tiny)["one.bin"] == b"one" * 1000
    assert server.requests == ["one.bin"]
    assert unusable_files(tiny.files, cache) == []


def test_a_server_with_another_file_is_an_error_and_nothing_is_kept(server: Any, cache: Path) -> None:
    tiny = server.offer_dataset()
    server.content["two.bin"] = b"something else"
    with pytest.raises(ChecksumError, match=r"two\.bin"):
        read_files(tiny, fetch=partial(download, attempts=1))
    assert unusable_files(tiny.files, cache) == [tiny.files[1]]
    assert not (cache / "tiny" / "raw" / "two.bin").exists()


def test_no_network_and_no_copy_is_one_error_that_says_what_to_do(cache: Path) -> None:
    cora = CATALOG["cora"]
    with pytest.raises(MissingDataError) as caught:
        read_files(cora, fetch=no_network)
    message = str(caught.value)
    assert all(file.path in message and file.url in message for file in cora.files)
    for words in ("Cora", "Name or service not known", str(cache), "EQUIPOISE_DATA", "root="):
        assert words in message


def test_only_what_is_still_missing_is_listed(server: Any) -> None:
    tiny = server.offer_dataset()
    server.troubles["two.bin"] = ["unavailable"]
    with pytest.raises(MissingDataError, match="503") as caught:
        read_files(tiny, fetch=partial(download, attempts=1))
    assert "tiny/raw/two.bin" in str(caught.value)
    assert "tiny/one.bin" not in str(caught.value)


def test_a_folder_of_the_users_is_not_completed_by_a_download(server: Any, tmp_path: Path, cache: Path) -> None:
    tiny, own = server.offer_dataset(), tmp_path / "own"
    with pytest.raises(MissingDataError, match="never written to") as caught:
        read_files(tiny, own, fetch=never)
    assert str(own) in str(caught.value)
    assert not own.exists()
    assert not cache.exists()


def test_the_variable_names_a_folder_as_root_does(
    server: Any, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = server.offer_dataset()
    download(tiny.files, tmp_path / "own")
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "own"))
    assert provide_files(tiny, fetch=never) == tmp_path / "own"
    assert read_files(tiny, fetch=never)["one.bin"] == b"one" * 1000
    assert not cache.exists()


def test_a_changed_file_of_the_users_is_refused_and_left_alone(server: Any, tmp_path: Path) -> None:
    tiny = server.offer_dataset()
    download(tiny.files, tmp_path)
    changed = tmp_path / "tiny" / "one.bin"
    changed.write_bytes(b"changed")
    with pytest.raises(ChecksumError, match=r"one\.bin") as caught:
        read_files(tiny, tmp_path, fetch=never)
    assert str(changed) in str(caught.value)
    assert f"replace it by a copy of {tiny.files[0].url}" in str(caught.value)
    assert changed.read_bytes() == b"changed"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "file.bin").mkdir()
    with pytest.raises(DataError, match=r"file\.bin cannot be read"):
        read_file(RawFile("file.bin", "", ""), tmp_path)


@given(st.binary(min_size=1), st.data())
def test_every_change_of_one_bit_is_noticed(content: bytes, data: st.DataObject) -> None:
    position, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    file = RawFile("file.bin", hashlib.sha256(content).hexdigest(), "https://example.org/file.bin")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert not is_intact(file, folder)
        (folder / "file.bin").write_bytes(content)
        assert is_intact(file, folder)
        assert read_file(file, folder) == content
        (folder / "file.bin").write_bytes(changed)
        assert not is_intact(file, folder)
