"""A partition as a folder: ``manifest.json``, and for each rank a folder ``part-0``, ``part-1``, … of ``.npy`` files.

A machine needs the manifest and the folders of its own ranks. The manifest has the type, the shape and the SHA-256 of
every file, so that a truncated, altered or mixed-up part is refused before training.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from equipoise.distributed.parts.graph_arrays import NODE_ARRAYS
from equipoise.distributed.parts.part import Manifest
from equipoise.errors import PartitionError

MANIFEST = "manifest.json"
FORMAT, FORMAT_VERSION = "equipoise-partition", 1
INDEX_ARRAYS = ("own", "halo", "edge_index", "send")
ARRAYS = (*INDEX_ARRAYS, *NODE_ARRAYS, "edge_attr")
HASH_BYTES = 2**22  # read at a time


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileRecord(_Strict):
    """Type, shape and SHA-256 of one file."""

    dtype: str
    shape: list[int]
    sha256: str


class RankRecord(_Strict):
    """Sizes and files of one rank; ``send`` and ``receive`` count rows per other rank."""

    nodes: int
    edges: int
    send: list[int]
    receive: list[int]
    files: dict[str, FileRecord]


class StoredManifest(_Strict):
    """The contents of ``manifest.json``."""

    format: str
    format_version: int
    manifest: Manifest
    edge_cut: int
    versions: dict[str, str]
    ranks: list[RankRecord]

    def fingerprint(self) -> str:
        """SHA-256 of everything but the fingerprint itself and the versions of the software."""
        content = self.model_dump(mode="json", exclude={"versions": True, "manifest": {"fingerprint"}})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def signed(self) -> StoredManifest:
        """Return a copy with its fingerprint."""
        return self.model_copy(update={"manifest": replace(self.manifest, fingerprint=self.fingerprint())})

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``."""
        (folder / MANIFEST).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


class NpyWriter:
    """Write an ``.npy`` file of known shape from front to back, and compute its SHA-256 on the way.

    The file is open only while it is written to, so that there may be any number of writers.

    Args:
        path: the file.
        shape: final shape.
        dtype: type of the entries.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.path, self.shape, self.dtype = path, shape, np.dtype(dtype).newbyteorder("=")
        self._missing = math.prod(shape)
        self._hash = hashlib.sha256()
        header = io.BytesIO()
        description = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, description)
        path.touch(exist_ok=False)
        self._write(header.getbuffer())

    def append(self, rows: NDArray[Any]) -> None:
        """Append the entries of an array in C order."""
        if rows.size:
            self._missing -= rows.size
            self._write(np.ascontiguousarray(rows, dtype=self.dtype).reshape(-1).view(np.uint8).data)

    def _write(self, content: memoryview) -> None:
        self._hash.update(content)
        with self.path.open("ab") as file:
            file.write(content)

    def record(self) -> FileRecord:
        """Return the manifest's entry of the complete file."""
        assert self._missing == 0, f"{self.path}: {self._missing} entries are missing"
        return FileRecord(dtype=self.dtype.str, shape=list(self.shape), sha256=self._hash.hexdigest())


def as_folder(path: Any) -> Path:
    """Convert an argument to a path.

    Args:
        path: the argument.

    Returns:
        The path.

    Raises:
        PartitionError: If it is none.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise PartitionError(f"expected the folder of a partition, got {path!r}", remedy="pass its path: 'parts'")
    return Path(path)


def part_folder(folder: Path, rank: int) -> Path:
    """Folder of one rank."""
    return folder / f"part-{rank}"


def read_manifest(folder: Path) -> StoredManifest:
    """Read and check ``manifest.json``.

    Args:
        folder: the partition.

    Returns:
        Its contents.

    Raises:
        PartitionError: If the folder is not a partition, has another format version, or the manifest was altered.
    """
    path = folder / MANIFEST
    remedy = "write it by: equipoise partition GRAPH --parts N --out FOLDER"
    if not path.is_file():
        what = f"there is no {MANIFEST} in {folder}" if folder.is_dir() else f"there is no folder {folder}"
        raise PartitionError(what, where=str(folder), remedy=remedy)
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except (OSError, ValueError) as error:
        raise PartitionError(f"{MANIFEST} is not readable: {error}", where=str(path), remedy=remedy) from error
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise PartitionError("this is not a partition of equipoise", where=str(path), remedy=remedy)
    if content.get("format_version") != FORMAT_VERSION:
        raise PartitionError(
            f"the partition has format version {content.get('format_version')}, this version of equipoise reads "
            f"{FORMAT_VERSION}",
            where=str(path),
            remedy="partition the graph again, or use the version of equipoise that wrote it on every machine",
        )
    try:
        stored = StoredManifest.model_validate_json(text)
    except ValidationError as error:
        _refuse_altered(path, str(error.errors()[0]["msg"]))
    if stored.fingerprint() != stored.manifest.fingerprint or len(stored.ranks) != stored.manifest.parts:
        _refuse_altered(path, "its fingerprint differs")
    return stored


def read_arrays(folder: Path, rank: int, record: RankRecord, *, verify: bool) -> dict[str, NDArray[Any]]:
    """Map the files of one rank into memory.

    Args:
        folder: the partition.
        rank: the rank.
        record: its entry in the manifest.
        verify: compute the SHA-256 of every file.

    Returns:
        The arrays by name. Writing to them does not change the files.

    Raises:
        PartitionError: If a file is missing or differs from the manifest.
    """
    arrays = {}
    for name in ARRAYS:
        if name not in record.files:
            continue
        path, expected = part_folder(folder, rank) / f"{name}.npy", record.files[name]
        if not path.is_file():
            raise PartitionError(
                f"part {rank} is missing" if not path.parent.is_dir() else f"part {rank} has no file {path.name}",
                where=str(path),
                remedy=f"copy the folder part-{rank} to this machine, or partition the graph again",
            )
        if verify and sha256(path) != expected.sha256:
            _refuse_altered(path, "its SHA-256 differs from the manifest")
        try:
            array = map_array(path, "c")  # torch has no read-only tensors
        except (OSError, ValueError) as error:
            _refuse_altered(path, str(error))
        if array.dtype.str != expected.dtype or list(array.shape) != expected.shape:
            _refuse_altered(path, f"expected {expected.dtype} of shape {tuple(expected.shape)}")
        arrays[name] = array
    return arrays


def map_array(path: Path, mode: Literal["r", "c"]) -> NDArray[Any]:
    """Map an ``.npy`` file into memory, read-only (``r``) or copy on write (``c``); NumPy cannot map empty arrays."""
    array: NDArray[Any]
    try:
        array = np.load(path, mmap_mode=mode, allow_pickle=False)
    except ValueError:
        array = np.load(path, allow_pickle=False)
        if array.size:
            raise
    return array


def sha256(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while content := file.read(HASH_BYTES):
            digest.update(content)
    return digest.hexdigest()


def _refuse_altered(path: Path, reason: str) -> NoReturn:
    raise PartitionError(
        f"{path.name} was altered or is incomplete: {reason}",
        where=str(path),
        remedy="copy the partition again from where it was written, or partition the graph again",
    )
