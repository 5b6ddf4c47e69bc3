"""Recordings of runs as pandas tables, the input of plots and descriptions."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pandas as pd

from equipoise.errors import EquipoiseError
from equipoise.experiments.store import Store

FrameLoader = Callable[[str], pd.DataFrame | None]  # run key → frame of its recording, None if there is no recording


def frame_loader(store: Store) -> FrameLoader:
    """Return a function that loads the recording of a run; the 16 most recently used frames are cached."""

    @lru_cache(maxsize=16)
    def load_frame(key: str) -> pd.DataFrame | None:
        packed = store.recording(key)
        return None if packed is None else packed.unpack().frame()

    return load_frame


def layer_table(frame: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Pivot one quantity into a table with one row per epoch and one column per layer.

    Args:
        frame: frame of a recording.
        quantity: quantity with one value per layer, such as ``gradient/features``.

    Returns:
        The table, indexed by epoch.

    Raises:
        EquipoiseError: if the quantity was not recorded.
    """
    rows = frame[frame["quantity"] == quantity]
    if rows.empty:
        raise EquipoiseError(
            f"{quantity} was not recorded",
            where=f"recorded: {', '.join(sorted(map(str, frame['quantity'].unique()))) or 'nothing'}",
            remedy="record its group: Recorder(model, laws, quantities=…)",
        )
    return rows.pivot_table(index="epoch", columns="layer", values="value", aggfunc="first")


def neuron_bands(frame: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Minimum, median and maximum over the neurons of a layer: columns epoch, layer, low, median, high."""
    layer_table(frame, quantity)  # raises if the quantity was not recorded
    values = frame[frame["quantity"] == quantity].groupby(["epoch", "layer"])["value"]
    return values.agg(low="min", median="median", high="max").reset_index()


def run_series(frame: pd.DataFrame, quantity: str) -> pd.Series[float]:
    """A quantity of the whole network by epoch; empty if it was not recorded."""
    rows = frame[frame["quantity"] == quantity]
    values: pd.Series[float] = rows.set_index("epoch")["value"]
    return values
