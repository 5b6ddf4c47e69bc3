"""The raw files of a data set, as bytes whose SHA-256 was checked before anyone looks into them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from equipoise.data.catalog import Entry, RawFile
from equipoise.data.download import download
from equipoise.data.folders import VARIABLE, Root, cache_folder, missing_files, user_folder
from equipoise.errors import ChecksumError, DataError, MissingDataError

Fetch = Callable[[Sequence[RawFile], Path], None]


def read_files(entry: Entry, root: Root = None, *, fetch: Fetch = download) -> dict[str, bytes]:
    """The content of every raw file by file name, from where :func:`provide_files` has it.

    Checking and reading are one: the bytes that were checked are the bytes that are returned.
    """
    folder = provide_files(entry, root, fetch=fetch)
    return {file.name: read_file(file, folder) for file in entry.files}


def provide_files(entry: Entry, root: Root = None, *, fetch: Fetch = download) -> Path:
    """The folder that holds every raw file of a data set.

    Args:
        entry: the data set.
        root: the user's own data folder, else ``EQUIPOISE_DATA``; must have all files, and is never written to.
            With neither it is the cache; what that lacks, or has damaged, is fetched first.
        fetch: puts files into a folder.
    """
    own = user_folder(root)
    if own is not None:
        if absent := missing_files(entry, own):
            raise _missing(entry, absent, own, "not found, and a folder of yours is never written to")
        return own
    cache = cache_folder()
    wanted = unusable_files(entry.files, cache)
    try:
        if wanted:
            fetch(wanted, cache)
    except OSError as error:
        raise _missing(entry, unusable_files(wanted, cache), cache, f"the download failed: {error}") from error
    return cache


def unusable_files(files: Iterable[RawFile], folder: Path) -> list[RawFile]:
    """Those of ``files`` that are not in ``folder``, or not as they were published."""
    return [file for file in files if not is_intact(file, folder)]


def is_intact(file: RawFile, folder: Path) -> bool:
    """Whether the file is in ``folder``, and the published one."""
    if not os.path.isfile(folder / file.path):
        return False
    try:
        read_file(file, folder)
    except ChecksumError:
        return False
    return True


def read_file(file: RawFile, folder: Path) -> bytes:
    """The content of one file; a :class:`ChecksumError` if it is not the published one."""
    path = folder / file.path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{file.name} cannot be read: {error.strerror or error}", where=str(path), remedy="make it readable"
        ) from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ChecksumError(
            f"{file.name} is not the published file: its SHA-256 differs, so nothing in it was used",
            where=str(path),
            remedy=f"replace it by a copy of {file.url}",
        )
    return content


def _missing(entry: Entry, files: Sequence[RawFile], folder: Path, reason: str) -> MissingDataError:
    listing = "".join(f"\n    {file.path}  ({file.url})" for file in files)
    return MissingDataError(
        f"files of {entry.title} are missing ({reason}):{listing}",
        where=str(folder),
        remedy="put them there under these names; or into another folder, and name it by root= or the environment "
        f"variable {VARIABLE}; with neither of the two, they are downloaded when there is a network",
    )
