"""Downloads that are whole or not at all: retried, compared with their checksum, then put in place in one step."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.data.catalog import RawFile
from equipoise.errors import ChecksumError, DataError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

CHUNK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte


def open_url(url: str) -> Any:
    """The response of a server, to be read and closed."""
    return urllib.request.urlopen(url, timeout=TIMEOUT)


def download(
    files: Sequence[RawFile],
    folder: Path,
    *,
    attempts: int = 3,
    opener: Callable[[str], Any] = open_url,
    pause: Callable[[float], object] = time.sleep,
    console: Console | None = None,
) -> None:
    """Fetch ``files`` into ``folder``, with a progress bar where standard error is a terminal.

    Args:
        files: what to fetch; each is tried ``attempts`` times, with a second's pause, then two, then four …
        folder: where their paths begin.
        attempts: how often each is tried.
        opener: opens a URL.
        pause: waits so many seconds.
        console: where the bar is drawn.

    Raises:
        OSError: the server cannot be reached, or breaks off each time.
        ChecksumError: what the server sends is not the published file.
        DataError: the folder cannot be written to.
    """
    with _progress(console) as progress:
        for file in files:
            _store(_fetch(file, attempts, opener, pause, progress), folder / file.path)


def _progress(console: Console | None) -> Progress:
    from rich.console import Console  # noqa: PLC0415 - most loads need no bar
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = console or Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _fetch(
    file: RawFile,
    attempts: int,
    opener: Callable[[str], Any],
    pause: Callable[[float], object],
    progress: Progress,
) -> bytes:
    """The content of one file, after as many attempts as it takes."""
    task = progress.add_task(file.name, total=None)

    def attempt() -> bytes:
        progress.reset(task)
        return _receive(file, opener, lambda **state: progress.update(task, **state))

    for failures in range(attempts - 1):
        try:
            return attempt()
        except (OSError, ChecksumError):
            pause(2**failures)
    return attempt()


def _receive(file: RawFile, opener: Callable[[str], Any], report: Callable[..., None]) -> bytes:
    """One attempt; an OSError if the connection breaks, a ChecksumError if what came is something else."""
    parts: list[bytes] = []
    try:
        with opener(file.url) as response:
            length = response.headers.get("Content-Length")
            expected = int(length) if length else None
            report(total=expected)
            while part := response.read(CHUNK):
                parts.append(part)
                report(advance=len(part))
    except HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    content = b"".join(parts)
    if expected is not None and len(content) != expected:
        raise OSError(f"the connection broke off after {len(content)} of {expected} bytes")
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ChecksumError(
            f"{file.name} as the server sends it is not the published file: its SHA-256 differs",
            where=file.url,
            remedy="a proxy or login page may have answered instead; open the address in a browser to see",
        )
    return content


def _store(content: bytes, target: Path) -> None:
    """Write all or nothing: other readers see no file or the whole of it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(name, target)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{target.name} cannot be written to the cache: {error.strerror or error}",
            where=str(target.parent),
            remedy="make room or set XDG_CACHE_HOME to a folder you may write to",
        ) from error
