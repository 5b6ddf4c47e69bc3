"""The raw files of data sets: where they are, download and verification.

A data folder of the user is only read. Otherwise files live in a cache, into which missing ones are downloaded by
`pooch`: retried, verified by SHA-256, then moved into place atomically. A file is parsed only after its checksum has
been verified. This module imports neither torch nor PyG.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from platformdirs import user_cache_path

from equipoise.data.catalog import DatasetInfo, RawFile
from equipoise.errors import ChecksumError, DataError, MissingDataError

DATA_VARIABLE = "EQUIPOISE_DATA"
CHUNK_SIZE = 1 << 16
TIMEOUT = 30.0  # seconds without data from the server

Root = str | os.PathLike[str] | None
Download = Callable[[Sequence[RawFile], Path], None]


def user_folder(root: Root = None) -> Path | None:
    """Return the user's data folder: ``root``, else the value of ``EQUIPOISE_DATA``, else ``None``."""
    folder = root if root is not None else os.environ.get(DATA_VARIABLE)
    return Path(folder).expanduser() if folder else None


def cache_folder() -> Path:
    """Return the folder for downloads: ``equipoise/data/raw`` in the user's cache directory.

    ``XDG_CACHE_HOME`` overrides the cache directory on all platforms.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    cache = Path(base) / "equipoise" if base else user_cache_path("equipoise", appauthor=False, opinion=False)
    return cache / "data" / "raw"


def data_folder(root: Root = None) -> Path:
    """Return the folder to read from: the user's data folder if there is one, else the cache."""
    return user_folder(root) or cache_folder()


def missing_files(info: DatasetInfo, folder: Path) -> list[RawFile]:
    """Return the files of a data set that ``folder`` lacks."""
    return [file for file in info.files if not os.path.isfile(folder / file.path)]


def unusable_files(files: Iterable[RawFile], folder: Path) -> list[RawFile]:
    """Return the files that ``folder`` lacks or that have a wrong checksum."""
    return [file for file in files if not is_intact(file, folder)]


def is_intact(file: RawFile, folder: Path) -> bool:
    """Check that a file exists and has the published checksum."""
    if not os.path.isfile(folder / file.path):
        return False
    try:
        read_file(file, folder)
    except ChecksumError:
        return False
    return True


def read_file(file: RawFile, folder: Path) -> bytes:
    """Read a file and verify its checksum.

    Args:
        file: the file.
        folder: data folder.

    Returns:
        The verified content.

    Raises:
        ChecksumError: If the file is not the published one.
        DataError: If the file cannot be read.
    """
    path = folder / file.path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{file.name} cannot be read: {error.strerror or error}", where=str(path), remedy="make it readable"
        ) from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ChecksumError(
            f"{file.name} is not the published file: its SHA-256 differs, so it was not used",
            where=str(path),
            remedy=f"replace it with a copy of {file.url}",
        )
    return content


def download(files: Sequence[RawFile], folder: Path, *, attempts: int = 3) -> None:
    """Download files into a folder, with a progress bar if standard error is a terminal.

    A file appears in the folder only when it is complete and verified.

    Args:
        files: files to download.
        folder: data folder.
        attempts: attempts per file, with growing pauses.

    Raises:
        OSError: If the server cannot be reached or the connection breaks in all attempts.
        ChecksumError: If the server does not send the published file.
        DataError: If the folder cannot be written to.
    """
    import pooch  # noqa: PLC0415 - only needed for downloads
    import requests  # noqa: PLC0415 - only needed for downloads

    pooch.get_logger().setLevel(logging.WARNING)  # it prints a line per file by default
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=CHUNK_SIZE, timeout=TIMEOUT)
    registry = pooch.Pooch(
        path=folder,
        base_url="",
        registry={file.path: f"sha256:{file.sha256}" for file in files},
        urls={file.path: file.url for file in files},
        retry_if_failed=attempts - 1,
    )
    for file in files:
        target = folder / file.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            registry.fetch(file.path, downloader=downloader)
        except OSError as error:
            if isinstance(error, requests.RequestException):  # the network, not the file system
                raise
            raise DataError(
                f"{file.name} cannot be written to the cache: {error.strerror or error}",
                where=str(target.parent),
                remedy="free disk space, or set XDG_CACHE_HOME to a writable folder",
            ) from error
        except ValueError as error:  # pooch's error for a wrong checksum
            raise ChecksumError(
                f"the server did not send the published {file.name}: its SHA-256 differs",
                where=file.url,
                remedy="a proxy or login page may have answered; open the address in a browser",
            ) from error


def ensure_files(info: DatasetInfo, root: Root = None, *, fetch: Download = download) -> Path:
    """Make sure that all files of a data set exist.

    Args:
        info: the data set.
        root: the user's data folder; by default the value of ``EQUIPOISE_DATA``. It must contain all files and is never
            written to. Without either, missing and damaged files are downloaded into the cache.
        fetch: downloads files into a folder.

    Returns:
        The folder that contains the files.

    Raises:
        MissingDataError: If files are missing and cannot be downloaded.
        ChecksumError: If the server does not send the published file.
        DataError: If the cache cannot be written to.
    """
    own = user_folder(root)
    if own is not None:
        if missing := missing_files(info, own):
            _raise_missing(info, missing, own, "equipoise does not write to a folder of yours")
        return own
    cache = cache_folder()
    unusable = unusable_files(info.files, cache)
    try:
        if unusable:
            fetch(unusable, cache)
    except OSError as error:
        _raise_missing(info, unusable_files(unusable, cache), cache, f"the download failed: {error}")
    return cache


def read_files(info: DatasetInfo, root: Root = None, *, fetch: Download = download) -> dict[str, bytes]:
    """Read all files of a data set after :func:`ensure_files`, and verify their checksums.

    Args:
        info: the data set.
        root: see :func:`ensure_files`.
        fetch: downloads files into a folder.

    Returns:
        Verified contents by file name.
    """
    folder = ensure_files(info, root, fetch=fetch)
    return {file.name: read_file(file, folder) for file in info.files}


def _raise_missing(info: DatasetInfo, files: Sequence[RawFile], folder: Path, reason: str) -> NoReturn:
    listing = "".join(f"\n    {file.path}  ({file.url})" for file in files)
    raise MissingDataError(
        f"files of {info.title} are missing ({reason}):{listing}",
        where=str(folder),
        remedy="copy them to this folder under these names, or to another folder and pass it as root= or in the "
        f"environment variable {DATA_VARIABLE}; without either, they are downloaded when there is a network",
    )
