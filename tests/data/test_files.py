from __future__ import annotations

import hashlib
import io
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data.catalog import CATALOG, RawFile
from equipoise.data.files import (
    cache_folder,
    data_folder,
    download,
    ensure_files,
    is_intact,
    missing_files,
    read_file,
    read_files,
    unusable_files,
    user_folder,
)
from equipoise.errors import ChecksumError, DataError, MissingDataError


def test_root_precedes_the_variable_which_precedes_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder() == cache
    monkeypatch.setenv("EQUIPOISE_DATA", "/theirs")
    assert data_folder() == Path("/theirs")
    assert data_folder("/mine") == Path("/mine")


def test_empty_variable_is_ignored(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", "")
    assert user_folder() is None
    assert data_folder() == cache


def test_tilde_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert user_folder("~/graphs") == Path("/home/someone/graphs")


def test_cache_is_in_the_home_folder_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    cache = cache_folder()
    assert cache.parts[-3:] == ("equipoise", "data", "raw")
    assert cache.is_relative_to(Path.home())
    if sys.platform == "linux":
        assert cache == Path.home() / ".cache" / "equipoise" / "data" / "raw"


def test_missing_files(tmp_path: Path) -> None:
    texas = CATALOG["texas"]
    assert missing_files(texas, tmp_path) == list(texas.files)
    (tmp_path / "heterophilous").mkdir()
    (tmp_path / "heterophilous" / "texas.npz").write_bytes(b"")
    assert missing_files(texas, tmp_path) == []


def unexpected_download(*args: object) -> None:
    raise AssertionError("no download expected")


def failing_download(*args: object) -> None:
    raise OSError("Name or service not known")


def test_cache_is_filled_once(server: Any, cache: Path) -> None:
    tiny = server.offer_dataset()
    first = read_files(tiny)
    assert first == {"one.bin": b"one" * 1000, "two.bin": b"two" * 50_000}
    assert (cache / "tiny" / "raw" / "two.bin").is_file()
    assert read_files(tiny, fetch=unexpected_download) == first
    assert server.requests == ["one.bin", "two.bin"]


def test_only_damaged_files_are_downloaded_again(server: Any, cache: Path) -> None:
    tiny = server.offer_dataset()
    read_files(tiny)
    server.requests.clear()
    (cache / "tiny" / "one.bin").write_bytes(b"damaged")
    assert read_files(tiny)["one.bin"] == b"one" * 1000
    assert server.requests == ["one.bin"]
    assert unusable_files(tiny.files, cache) == []


def test_wrong_content_raises_and_is_not_stored(server: Any, cache: Path) -> None:
    tiny = server.offer_dataset()
    server.content["two.bin"] = b"something else"
    with pytest.raises(ChecksumError, match=r"two\.bin"):
        read_files(tiny, fetch=partial(download, attempts=1))
    assert unusable_files(tiny.files, cache) == [tiny.files[1]]
    assert not (cache / "tiny" / "raw" / "two.bin").exists()


def test_failed_download_names_files_and_remedy(cache: Path) -> None:
    cora = CATALOG["cora"]
    with pytest.raises(MissingDataError) as caught:
        read_files(cora, fetch=failing_download)
    message = str(caught.value)
    assert all(file.path in message and file.url in message for file in cora.files)
    for words in ("Cora", "Name or service not known", str(cache), "EQUIPOISE_DATA", "root="):
        assert words in message


def test_error_lists_only_missing_files(server: Any) -> None:
    tiny = server.offer_dataset()
    server.faults["two.bin"] = ["unavailable"]
    with pytest.raises(MissingDataError, match="503") as caught:
        read_files(tiny, fetch=partial(download, attempts=1))
    assert "tiny/raw/two.bin" in str(caught.value)
    assert "tiny/one.bin" not in str(caught.value)


def test_user_folder_is_not_written_to(server: Any, tmp_path: Path, cache: Path) -> None:
    tiny, own = server.offer_dataset(), tmp_path / "own"
    with pytest.raises(MissingDataError, match="does not write to a folder of yours") as caught:
        read_files(tiny, own, fetch=unexpected_download)
    assert str(own) in str(caught.value)
    assert not own.exists()
    assert not cache.exists()


def test_variable_names_the_user_folder(
    server: Any, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = server.offer_dataset()
    download(tiny.files, tmp_path / "own")
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "own"))
    assert ensure_files(tiny, fetch=unexpected_download) == tmp_path / "own"
    assert read_files(tiny, fetch=unexpected_download)["one.bin"] == b"one" * 1000
    assert not cache.exists()


def test_changed_file_in_user_folder_is_rejected_and_kept(server: Any, tmp_path: Path) -> None:
    tiny = server.offer_dataset()
    download(tiny.files, tmp_path)
    changed = tmp_path / "tiny" / "one.bin"
    changed.write_bytes(b"changed")
    with pytest.raises(ChecksumError, match=r"one\.bin") as caught:
        read_files(tiny, tmp_path, fetch=unexpected_download)
    assert str(changed) in str(caught.value)
    assert f"replace it with a copy of {tiny.files[0].url}" in str(caught.value)
    assert changed.read_bytes() == b"changed"


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file.bin").mkdir()
    with pytest.raises(DataError, match=r"file\.bin cannot be read"):
        read_file(RawFile("file.bin", "", ""), tmp_path)


@given(st.binary(min_size=1), st.data())
def test_every_flipped_bit_is_detected(content: bytes, data: st.DataObject) -> None:
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


CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, recorded instead of slept."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_downloaded_files_are_complete(server: Any, tmp_path: Path) -> None:
    files = [server.offer("a/b/large.bin", CONTENT), server.offer("small.bin", b"x"), server.offer("empty.bin", b"")]
    download(files, tmp_path)
    assert files_below(tmp_path) == ["a/b/large.bin", "empty.bin", "small.bin"]
    assert (tmp_path / "a/b/large.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("fault", ["cut", "unavailable", "wrong"])
def test_temporary_faults_are_retried(server: Any, tmp_path: Path, pauses: list[float], fault: str) -> None:
    file = server.offer("file.bin", CONTENT)
    server.faults["file.bin"] = [fault, fault]
    download([file], tmp_path)
    assert pauses == [1, 2]
    assert server.requests == ["file.bin"] * 3
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("cut", OSError, f"{len(CONTENT) // 2} more expected"),
        ("unavailable", OSError, "503"),
        ("wrong", ChecksumError, "SHA-256"),
    ],
)
def test_permanent_faults_leave_no_file(
    server: Any, tmp_path: Path, pauses: list[float], fault: str, error: type[Exception], message: str
) -> None:
    good, bad = server.offer("good.bin", b"good"), server.offer("file.bin", CONTENT)
    server.faults["file.bin"] = [fault] * 3
    with pytest.raises(error, match=message):
        download([good, bad], tmp_path)
    assert files_below(tmp_path) == ["good.bin"]
    assert server.requests == ["good.bin"] + ["file.bin"] * 3


def test_existing_file_is_kept_until_the_new_one_is_complete(server: Any, tmp_path: Path) -> None:
    file = server.offer("file.bin", CONTENT)
    (tmp_path / "file.bin").write_bytes(b"old")
    server.faults["file.bin"] = ["cut"]
    with pytest.raises(OSError, match="more expected"):
        download([file], tmp_path, attempts=1)
    assert (tmp_path / "file.bin").read_bytes() == b"old"
    download([file], tmp_path, attempts=1)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert files_below(tmp_path) == ["file.bin"]


def test_failed_write_leaves_no_temporary_file(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.move", refuse)
    with pytest.raises(DataError, match=r"file\.bin cannot be written to the cache: Permission denied"):
        download([server.offer("file.bin", CONTENT)], tmp_path)
    assert files_below(tmp_path) == []


def test_unwritable_folder_is_named_with_a_remedy(server: Any, tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("a file instead of a folder")
    with pytest.raises(DataError, match="XDG_CACHE_HOME") as caught:
        download([server.offer("raw/file.bin", CONTENT)], tmp_path)
    assert str(tmp_path / "raw") in str(caught.value)


def test_unreachable_server_raises_an_os_error(tmp_path: Path, pauses: list[float]) -> None:
    with pytest.raises(OSError, match="refused"):
        download([RawFile("file.bin", "0" * 64, "http://127.0.0.1:1/file.bin")], tmp_path, attempts=4)
    assert pauses == [1, 2, 3]
    assert files_below(tmp_path) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_only_on_a_terminal(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = server.offer("file.bin", CONTENT)
    output = {}
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", stream)
        download([file], tmp_path / type(stream).__name__)
        output[type(stream)] = stream.getvalue()
    assert "256k/256k" in output[Terminal]
    assert output[io.StringIO] == ""
