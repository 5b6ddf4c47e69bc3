"""The folder of the real data sets, for tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from equipoise.data.catalog import dataset_info
from equipoise.data.files import missing_files

LOCAL_COPY = Path(__file__).parents[2] / "shared" / "data"
REAL_DATA = Path(os.environ.get("EQUIPOISE_DATA") or LOCAL_COPY)


def require(*names: str) -> Path:
    """Return the folder with these data sets; skip the test if it lacks one."""
    missing = [name for name in names if missing_files(dataset_info(name), REAL_DATA)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}, not in {REAL_DATA}; set EQUIPOISE_DATA to name another folder")
    return REAL_DATA
