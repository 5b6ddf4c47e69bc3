"""Recorded values by epoch, quantity, layer and neuron, in memory or in one file."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from equipoise.atomic_write import write_atomically
from equipoise.errors import TrainingError

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray
FORMAT_VERSION = 1
# Errors of NumPy and zipfile on files that are no recordings, truncated, or have flipped bytes.
_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, EOFError, OverflowError, MemoryError, NotImplementedError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),
)
# Kinds of the NumPy dtypes of the arrays in a file.
COLUMN_KINDS = {"layers": "U", "epoch": "i", "quantity": "U", "layer": "i", "neurons": "i", "values": "f"}
RECORD_OVERHEAD = 250  # bytes of the Python objects around a record's values


class Record(NamedTuple):
    """One quantity of one layer at one epoch.

    Attributes:
        quantity: ``group/name``, such as ``gradient/features`` or ``balance/c``.
        layer: layer number, from 1; 0 for quantities of the whole network.
        values: float64, of shape () or (neurons,).
    """

    quantity: str
    layer: int
    values: Array


def scalar_record(quantity: str, layer: int, value: float) -> Record:
    """Return a record with one number."""
    return Record(quantity, layer, np.array(value, dtype=np.float64))


@dataclass
class Recording:
    """The records of a training run, by epoch.

    Attributes:
        layers: names of the layers in the model, first to last.
        epochs: the records of every recorded epoch.
        nbytes: memory held by all records, in bytes.

    Example:
        >>> recording = Recording(("convs.0",))
        >>> recording.add(1, [Record("balance/c", 1, np.array([0.5, -2.0]))])
        >>> recording.frame()
           epoch   quantity  layer  neuron  value
        0      1  balance/c      1       0    0.5
        1      1  balance/c      1       1   -2.0
    """

    layers: tuple[str, ...] = ()
    epochs: dict[int, list[Record]] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, epoch: int, records: Iterable[Record]) -> None:
        """Add records to an epoch.

        Args:
            epoch: the epoch, from 1.
            records: the records to add.
        """
        new = list(records)
        self.epochs.setdefault(epoch, []).extend(new)
        self.nbytes += sum(map(_nbytes, new))

    def thin(self, every: int) -> None:
        """Drop all epochs except the first and the multiples of ``every``."""
        first = min(self.epochs, default=0)
        self.epochs = {e: records for e, records in self.epochs.items() if e == first or e % every == 0}
        self.nbytes = sum(_nbytes(record) for records in self.epochs.values() for record in records)

    def frame(self) -> pd.DataFrame:
        """Return all values as a tidy data frame.

        Returns:
            One row per value with the columns ``epoch``, ``quantity``, ``layer``, ``neuron`` and ``value``. ``layer``
            is NA for quantities of the network, ``neuron`` for quantities of a layer.
        """
        import pandas as pd  # noqa: PLC0415 - slow to import, and commands that only read the store do without

        epochs, records = self._flatten()
        sizes = [record.values.size for record in records]
        indices = [np.arange(record.values.size) if record.values.ndim else np.array([-1]) for record in records]
        layers = np.repeat(np.array([record.layer for record in records], np.int64), sizes)
        neurons = np.concatenate([np.empty(0, np.int64), *indices])
        return pd.DataFrame(
            {
                "epoch": np.repeat(np.array(epochs, np.int64), sizes),
                "quantity": np.repeat(np.array([record.quantity for record in records], dtype=object), sizes),
                "layer": pd.arrays.IntegerArray(layers, layers == 0),
                "neuron": pd.arrays.IntegerArray(neurons, neurons < 0),
                "value": np.concatenate([np.empty(0), *(record.values.reshape(-1) for record in records)]),
            }
        )

    def save(self, path: str | Path) -> Path:
        """Write the recording to one file (NumPy's compressed ``.npz``, without pickles).

        Args:
            path: the file; no suffix is added.

        Returns:
            The path.

        Raises:
            TrainingError: if the file cannot be written.
        """
        path = Path(path)
        try:
            write_atomically(path, self.to_bytes())
        except OSError as error:
            raise TrainingError(
                f"the recording cannot be written: {error}",
                where=str(path),
                remedy="choose a file in an existing folder that you may write to",
            ) from error
        return path

    def to_bytes(self) -> bytes:
        """Return the content of the file that :meth:`save` writes; ``load(io.BytesIO(…))`` reads it."""
        epochs, records = self._flatten()
        columns = {
            "format": np.array(FORMAT_VERSION),
            "layers": np.array(self.layers, dtype=str),
            "epoch": np.array(epochs, np.int64),
            "quantity": np.array([record.quantity for record in records], dtype=str),
            "layer": np.array([record.layer for record in records], np.int64),
            "neurons": np.array([record.values.size if record.values.ndim else -1 for record in records], np.int64),
            "values": np.concatenate([np.empty(0), *(record.values.reshape(-1) for record in records)]),
        }
        file = io.BytesIO()
        np.savez_compressed(file, **columns)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def load(cls, path: str | Path | io.BytesIO) -> Recording:
        """Read a recording that :meth:`save` or :meth:`to_bytes` wrote.

        Args:
            path: a file, or its content.

        Returns:
            The recording.

        Raises:
            TrainingError: if the file is missing, not a recording, or of another format version.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                columns = {name: np.asarray(file[name]) for name in file.files}  # bytes, if its header is damaged
            recording = cls._from_columns(columns)
        except _UNREADABLE as error:
            where = "bytes" if isinstance(path, io.BytesIO) else str(path)
            raise TrainingError(
                f"the recording cannot be read: {error}",
                where=where,
                remedy="choose a file written by rec.save(path)",
            ) from error
        return recording

    @classmethod
    def _from_columns(cls, columns: dict[str, Array]) -> Recording:
        if int(columns["format"]) != FORMAT_VERSION:
            raise ValueError(f"format version {int(columns['format'])}, expected {FORMAT_VERSION}")
        for name, kinds in COLUMN_KINDS.items():
            if columns[name].ndim != 1 or columns[name].dtype.kind not in kinds:
                raise ValueError(f"{name} is an array of {columns[name].dtype}{list(columns[name].shape)}")
        sizes = np.abs(columns["neurons"])
        if sizes.min(initial=0) < 0 or int(sizes.sum()) != len(columns["values"]):
            raise ValueError(f"{len(columns['values'])} values, expected {sizes.sum()}")
        blocks = np.split(columns["values"], np.cumsum(sizes)[:-1]) if len(sizes) else []
        lists = [columns[name].tolist() for name in ("epoch", "quantity", "layer", "neurons")]
        epochs: dict[int, list[Record]] = {}
        for epoch, quantity, layer, neurons, block in zip(*lists, blocks, strict=True):
            values = block.reshape(()) if neurons < 0 else block
            epochs.setdefault(epoch, []).append(Record(quantity, layer, values))
        recording = cls(tuple(map(str, columns["layers"])))
        for epoch, records in epochs.items():
            recording.add(epoch, records)
        return recording

    def _flatten(self) -> tuple[list[int], list[Record]]:
        """Return all records in the order of their epochs, and the epoch of each."""
        ordered = sorted(self.epochs)
        return (
            [epoch for epoch in ordered for _ in self.epochs[epoch]],
            [record for epoch in ordered for record in self.epochs[epoch]],
        )


def _nbytes(record: Record) -> int:
    return record.values.nbytes + RECORD_OVERHEAD


def chart_values(records: Iterable[Record]) -> Iterator[tuple[str, float]]:
    """Aggregate records to one or two scalars per layer, for charts.

    Args:
        records: the records of one epoch.

    Yields:
        Pairs of tag and value: ``gradient/layer03/features`` for a scalar record, ``balance/layer03/c_max`` and
        ``c_mean`` (of absolute values) for a record with one value per neuron.

    Example:
        >>> list(chart_values([Record("balance/c", 3, np.array([0.5, -2.0])), Record("train/loss", 0, np.array(1.9))]))
        [('balance/layer03/c_max', 2.0), ('balance/layer03/c_mean', 1.25), ('train/loss', 1.9)]
    """
    for record in records:
        group, _, name = record.quantity.partition("/")
        tag = f"{group}/layer{record.layer:02d}/{name}" if record.layer else record.quantity
        if record.values.ndim:
            yield f"{tag}_max", float(np.abs(record.values).max())
            yield f"{tag}_mean", float(np.abs(record.values).mean())
        else:
            yield tag, float(record.values)
