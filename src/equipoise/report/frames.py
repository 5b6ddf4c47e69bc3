"""What was recorded of runs, as tables: gathered here, before it is drawn or told."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pandas as pd

from equipoise.errors import EquipoiseError
from equipoise.experiments.store import Store

Frames = Callable[[str], pd.DataFrame | None]  # key of a run → what was recorded of it


def frames_of(store: Store) -> Frames:
    """What was recorded of the runs in a store; the last few frames are kept at hand."""

    @lru_cache(maxsize=16)
    def frame(key: str) -> pd.DataFrame | None:
        recorded = store.recording(key)
        return None if recorded is None else recorded.unpack().frame()

    return frame


def by_layer(frame: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """One quantity as a table: a row an epoch, a column a layer."""
    rows = frame[frame["quantity"] == quantity]
    if rows.empty:
        raise EquipoiseError(
            f"nothing is recorded of {quantity}",
            where=", ".join(sorted(map(str, frame["quantity"].unique()))) or "an empty frame",
            remedy="record this group: Recorder(model, laws, quantities=…)",
        )
    return rows.pivot_table(index="epoch", columns="layer", values="value", aggfunc="first")


def bands(frame: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Least, median and largest value over the neurons of a layer: columns epoch, layer, low, median, high."""
    by_layer(frame, quantity)
    rows = frame[frame["quantity"] == quantity].groupby(["epoch", "layer"])["value"]
    return rows.agg(low="min", median="median", high="max").reset_index()


def scalar(frame: pd.DataFrame, quantity: str) -> pd.Series[float]:
    """A number of the run by epoch; empty if it was not recorded."""
    rows = frame[frame["quantity"] == quantity]
    values: pd.Series[float] = rows.set_index("epoch")["value"]
    return values
