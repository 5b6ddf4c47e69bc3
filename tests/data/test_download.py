from __future__ import annotations

import http.client
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from equipoise.data.download import download
from equipoise.errors import ChecksumError, DataError

CONTENT = bytes(range(256)) * 1000


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_arrive_whole_and_alone(server: Any, tmp_path: Path) -> None:
    files = [server.offer("a/b/large.bin", CONTENT), server.offer("small.bin", b"x"), server.offer("empty.bin", b"")]
    download(files, tmp_path)
    assert everything_below(tmp_path) == ["a/b/large.bin", "empty.bin", "small.bin"]
    assert (tmp_path / "a/b/large.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("trouble", ["cut", "unavailable", "wrong"])
def test_trouble_that_passes_is_waited_out(server: Any, tmp_path: Path, trouble: str) -> None:
    file, pauses = server.offer("file.bin", CONTENT), []
    server.troubles["file.bin"] = [trouble, trouble]
    download([file], tmp_path, pause=pauses.append)
    assert pauses == [1, 2]
    assert server.requests == ["file.bin"] * 3
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("trouble", "error", "words"),
    [
        ("cut", OSError, f"broke off after {len(CONTENT) // 2} of {len(CONTENT)} bytes"),
        ("unavailable", OSError, "503"),
        ("wrong", ChecksumError, "SHA-256"),
    ],
)
def test_trouble_that_stays_leaves_nothing_behind(
    server: Any, tmp_path: Path, trouble: str, error: type[Exception], words: str
) -> None:
    good, bad = server.offer("good.bin", b"good"), server.offer("file.bin", CONTENT)
    server.troubles["file.bin"] = [trouble] * 3
    with pytest.raises(error, match=words):
        download([good, bad], tmp_path, pause=lambda _: None)
    assert everything_below(tmp_path) == ["good.bin"]


def test_what_was_there_stays_until_the_new_file_is_whole(server: Any, tmp_path: Path) -> None:
    file = server.offer("file.bin", CONTENT)
    (tmp_path / "file.bin").write_bytes(b"old")
    server.troubles["file.bin"] = ["cut"]
    with pytest.raises(OSError, match="broke off"):
        download([file], tmp_path, attempts=1)
    assert (tmp_path / "file.bin").read_bytes() == b"old"
    download([file], tmp_path, attempts=1)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert everything_below(tmp_path) == ["file.bin"]


def test_a_failure_to_write_leaves_no_temporary_file(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(DataError, match=r"file\.bin cannot be written to the cache: Permission denied"):
        download([server.offer("file.bin", CONTENT)], tmp_path)
    assert everything_below(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named_with_a_remedy(server: Any, tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("a file where a folder should be")
    with pytest.raises(DataError, match="XDG_CACHE_HOME") as caught:
        download([server.offer("raw/file.bin", CONTENT)], tmp_path)
    assert str(tmp_path / "raw") in str(caught.value)


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), TimeoutError("timed out")])
def test_the_opener_is_asked_as_often_as_there_are_attempts(server: Any, tmp_path: Path, error: OSError) -> None:
    asked = []

    def opener(url: str) -> None:
        asked.append(url)
        raise error

    file = server.offer("file.bin", CONTENT)
    with pytest.raises(type(error)):
        download([file], tmp_path, attempts=4, opener=opener, pause=lambda _: None)
    assert asked == [file.url] * 4


def test_a_broken_protocol_counts_as_a_broken_connection(server: Any, tmp_path: Path) -> None:
    def opener(url: str) -> None:
        raise http.client.IncompleteRead(b"half")

    with pytest.raises(OSError, match="IncompleteRead"):
        download([server.offer("file.bin", CONTENT)], tmp_path, attempts=1, opener=opener)


def test_a_terminal_sees_progress_and_a_file_does_not(server: Any, tmp_path: Path) -> None:
    file = server.offer("file.bin", CONTENT)
    shown = {}
    for terminal in (True, False):
        screen = io.StringIO()
        download([file], tmp_path, console=Console(file=screen, force_terminal=terminal, width=100))
        shown[terminal] = screen.getvalue()
    assert "file.bin" in shown[True]
    assert "256.0/256.0 kB" in shown[True]
    assert shown[False] == ""
