"""Where the real data sets are, for the tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from equipoise.data.catalog import catalog_entry
from equipoise.data.folders import missing_files

LOCAL_COPY = Path(__file__).parents[2] / "shared" / "data"
REAL_DATA = Path(os.environ.get("EQUIPOISE_DATA") or LOCAL_COPY)


def require(*names: str) -> Path:
    """The folder with these data sets; skips the test, and says so, where they are not there."""
    absent = [name for name in names if missing_files(catalog_entry(name), REAL_DATA)]
    if absent:
        pytest.skip(f"needs {', '.join(absent)}, not in {REAL_DATA}; EQUIPOISE_DATA may name another folder")
    return REAL_DATA
