"""Where raw files lie: a folder of the user's, which is only ever read, or the cache, which is ours to fill."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from equipoise.data.catalog import Entry, RawFile

VARIABLE = "EQUIPOISE_DATA"

Root = str | os.PathLike[str] | None


def user_folder(root: Root = None) -> Path | None:
    """The user's own data folder: ``root``, else what ``EQUIPOISE_DATA`` says, else none."""
    chosen = root if root is not None else os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else None


def cache_folder() -> Path:
    """Where downloaded files are kept: ``equipoise/data/raw`` below the user's cache directory."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        cache = Path(base)
    elif sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path.home() / ".cache"
    return cache / "equipoise" / "data" / "raw"


def data_folder(root: Root = None) -> Path:
    """The folder that is looked into: the user's own if there is one, else the cache."""
    return user_folder(root) or cache_folder()


def missing_files(entry: Entry, folder: Path) -> list[RawFile]:
    """The raw files of a data set that are not in ``folder``."""
    return [file for file in entry.files if not os.path.isfile(folder / file.path)]
