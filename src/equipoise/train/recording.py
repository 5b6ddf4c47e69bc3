"""What a recorder has written down: numbers by epoch, quantity, layer and neuron, in memory or in one file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from equipoise.errors import TrainingError

Array = np.ndarray
FORMAT = 1


class Entry(NamedTuple):
    """One quantity of one layer at one epoch: a number, or one for every neuron.

    Attributes:
        quantity: ``group/name``, such as ``gradient/features`` or ``balance/c``.
        layer: its number, from 1; 0 for what belongs to the network as a whole.
        values: float64, of shape () or (neurons,).
    """

    quantity: str
    layer: int
    values: Array


@dataclass
class Recording:
    """Entries by epoch.

    Attributes:
        layers: the layers' names in the model, first to last.
        epochs: the entries of every recorded epoch.
        nbytes: what all of them hold.

    Example:
        >>> recording = Recording(("convs.0",))
        >>> recording.add(1, [Entry("balance/c", 1, np.array([0.5, -2.0]))])
        >>> recording.frame()
           epoch   quantity  layer  neuron  value
        0      1  balance/c      1       0    0.5
        1      1  balance/c      1       1   -2.0
    """

    layers: tuple[str, ...] = ()
    epochs: dict[int, list[Entry]] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, epoch: int, entries: Iterable[Entry]) -> None:
        """Write down more about an epoch."""
        more = list(entries)
        self.epochs.setdefault(epoch, []).extend(more)
        self.nbytes += sum(map(_size, more))

    def thin(self, every: int) -> None:
        """Forget all epochs but the first and the multiples of ``every``."""
        first = min(self.epochs, default=0)
        self.epochs = {e: entries for e, entries in self.epochs.items() if e == first or e % every == 0}
        self.nbytes = sum(_size(entry) for entries in self.epochs.values() for entry in entries)

    def frame(self) -> pd.DataFrame:
        """A tidy frame: epoch, quantity, layer, neuron, value. Layers and neurons are missing where there are none."""
        epochs, entries = self._flat()
        sizes = [entry.values.size for entry in entries]
        neurons = [np.arange(entry.values.size) if entry.values.ndim else np.array([-1]) for entry in entries]
        layers = np.repeat(np.array([entry.layer for entry in entries], np.int64), sizes)
        places = np.concatenate([np.empty(0, np.int64), *neurons])
        return pd.DataFrame(
            {
                "epoch": np.repeat(np.array(epochs, np.int64), sizes),
                "quantity": np.repeat(np.array([entry.quantity for entry in entries], dtype=object), sizes),
                "layer": pd.arrays.IntegerArray(layers, layers == 0),
                "neuron": pd.arrays.IntegerArray(places, places < 0),
                "value": np.concatenate([np.empty(0), *(entry.values.reshape(-1) for entry in entries)]),
            }
        )

    def save(self, path: str | Path) -> Path:
        """Write everything to one file (NumPy's compressed ``.npz``, without pickles)."""
        path = Path(path)
        try:
            path.write_bytes(self.to_bytes())
        except OSError as error:
            raise TrainingError(
                f"the recording cannot be written: {error}", where=str(path), remedy="name a file you may write"
            ) from error
        return path

    def to_bytes(self) -> bytes:
        """What :meth:`save` writes, for a place that is no file of its own; ``load(io.BytesIO(…))`` reads it."""
        epochs, entries = self._flat()
        columns = {
            "format": np.array(FORMAT),
            "layers": np.array(self.layers, dtype=str),
            "epoch": np.array(epochs, np.int64),
            "quantity": np.array([entry.quantity for entry in entries], dtype=str),
            "layer": np.array([entry.layer for entry in entries], np.int64),
            "neurons": np.array([entry.values.size if entry.values.ndim else -1 for entry in entries], np.int64),
            "values": np.concatenate([np.empty(0), *(entry.values.reshape(-1) for entry in entries)]),
        }
        file = io.BytesIO()
        np.savez_compressed(file, **columns)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def load(cls, path: str | Path | io.BytesIO) -> Recording:
        """What :meth:`save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                columns = {name: file[name] for name in file.files}
            if int(columns["format"]) != FORMAT:
                raise ValueError(f"format {int(columns['format'])}, this version reads {FORMAT}")
            recording = cls(tuple(map(str, columns["layers"])))
            sizes = np.abs(columns["neurons"])
            blocks = np.split(columns["values"], np.cumsum(sizes)[:-1]) if len(sizes) else []
            names = ("epoch", "quantity", "layer", "neurons")
            epochs: dict[int, list[Entry]] = {}
            for epoch, quantity, layer, neurons, values in zip(
                *(columns[name].tolist() for name in names), blocks, strict=True
            ):
                shaped = values.reshape(()) if neurons < 0 else values
                epochs.setdefault(epoch, []).append(Entry(quantity, layer, shaped))
            for epoch, entries in epochs.items():
                recording.add(epoch, entries)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            where = "bytes" if isinstance(path, io.BytesIO) else str(path)
            raise TrainingError(
                f"no recording can be read: {error}", where=where, remedy="name a file that rec.save(path) wrote"
            ) from error
        return recording

    def _flat(self) -> tuple[list[int], list[Entry]]:
        ordered = sorted(self.epochs)
        return (
            [epoch for epoch in ordered for _ in self.epochs[epoch]],
            [entry for epoch in ordered for entry in self.epochs[epoch]],
        )


def _size(entry: Entry) -> int:
    """Bytes of its numbers, and of the objects around them."""
    return entry.values.nbytes + 250


def aggregated(entries: Iterable[Entry]) -> Iterator[tuple[str, float]]:
    """Entries as charts, a layer each: ``balance/layer03/c_max`` and ``c_mean`` of |c|, ``gradient/layer03/features``.

    Example:
        >>> list(aggregated([Entry("balance/c", 3, np.array([0.5, -2.0])), Entry("train/loss", 0, np.array(1.9))]))
        [('balance/layer03/c_max', 2.0), ('balance/layer03/c_mean', 1.25), ('train/loss', 1.9)]
    """
    for entry in entries:
        group, _, name = entry.quantity.partition("/")
        tag = f"{group}/layer{entry.layer:02d}/{name}" if entry.layer else entry.quantity
        if entry.values.ndim:
            yield f"{tag}_max", float(np.abs(entry.values).max())
            yield f"{tag}_mean", float(np.abs(entry.values).mean())
        else:
            yield tag, float(entry.values)
