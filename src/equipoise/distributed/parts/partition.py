"""Partition a graph into a folder of files: :func:`partition`, and the rules for the folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from equipoise.distributed.parts.assignment import assign_nodes, choose_method, work_of_nodes
from equipoise.distributed.parts.files import MANIFEST, as_folder
from equipoise.distributed.parts.graph_arrays import read_graph
from equipoise.distributed.parts.summary import PartitionSummary, summarize
from equipoise.distributed.parts.writer import OnProgress, write_parts
from equipoise.errors import PartitionError
from equipoise.laws.validation import is_integer

MAX_EMPTY_PARTS = 1024  # as many parts are possible whatever the graph


def partition(
    data: Any,
    parts: int,
    out: str | PathLike[str],
    *,
    method: str = "auto",
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> PartitionSummary:
    """Partition a graph, once, for training on several ranks; :func:`load_part` loads the part of a rank.

    Each rank owns some nodes and all of their incoming edges; a layer takes about as long on every part. The files are
    written to a temporary folder next to ``out``, which is renamed when it is complete. The same input gives the same
    files, bit for bit.

    Args:
        data: a PyG ``Data`` object, a mapping with the same names (``x``, ``edge_index`` and, optionally, ``y``,
            ``train_mask``, ``val_mask``, ``test_mask``, ``edge_attr``), or a folder with these arrays as ``.npy``
            files. Arrays may be tensors, NumPy arrays, memory-mapped ones too, or paths of ``.npy`` files; features are
            read in chunks and never held in memory.
        parts: number of parts, one per rank; more than nodes leaves some of them empty.
        out: folder to write, which does not exist yet or is empty.
        method: ``"metis"`` (needs ``pip install 'equipoise[metis]'``), ``"blocks"`` (greedy graph growing, fast, no
            dependency, a somewhat larger halo), or ``"auto"``: METIS if it is installed.
        force: replace the partition that is in ``out``.
        on_progress: called with the stage, the number of finished rows, and their total.

    Returns:
        Sizes of the parts and of their halos; prints as a table.

    Raises:
        PartitionError: If ``parts`` is not an integer from 1 or far exceeds the nodes, ``out`` is in use or cannot be
            written, an array is missing or malformed, or METIS is requested and not installed.
        EdgeIndexError: If ``edge_index`` refers to a node that does not exist.
        ChoiceError: If there is no such method.

    Example:
        >>> import tempfile
        >>> import equipoise as eq
        >>> summary = eq.partition(eq.load_dataset("synthetic-citation"), 4, tempfile.mkdtemp(), method="blocks")
        >>> sum(summary.nodes), sum(summary.edges)
        (1750, 6948)
    """
    if not is_integer(parts) or parts < 1:
        raise PartitionError(f"{parts!r} parts are not possible", where="parts", remedy="choose an integer from 1")
    parts, folder = int(parts), as_folder(out)
    check_destination(folder, force=force)
    graph = read_graph(data)
    if parts > max(graph.num_nodes, MAX_EMPTY_PARTS):
        raise PartitionError(
            f"{parts} parts of {graph.num_nodes} nodes would nearly all be empty",
            where="parts",
            remedy="choose at most one part per node",
        )
    method = choose_method(method, parts=parts, nodes=graph.num_nodes)
    report = on_progress or _ignore
    report("assigning nodes", 0, 1)
    owner = assign_nodes(graph, parts, method, work_of_nodes(graph))
    report("assigning nodes", 1, 1)
    with _write_errors(folder), _replacing(folder) as temporary:
        stored = write_parts(graph, owner, parts, temporary, method=method, report=report)
    return summarize(stored)


def _ignore(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def check_destination(folder: Path, *, force: bool) -> None:
    """Check that a partition may be written to a folder.

    Args:
        folder: the folder.
        force: whether a partition that is there may be replaced. Anything else never is.

    Raises:
        PartitionError: If the folder is in use, or cannot be read.
    """
    with _write_errors(folder):
        if not folder.exists() and not folder.is_symlink():
            return
        if not folder.is_dir():
            raise PartitionError(f"{folder} is not a folder", where=str(folder), remedy="choose another name")
        entries = {entry.name for entry in folder.iterdir()}
    if entries:
        _check_replaceable(folder, entries, force=force)
    if Path.cwd().is_relative_to(folder.resolve()):
        raise PartitionError(
            "the folder of the partition would replace the current directory",
            where=str(folder),
            remedy="choose a folder in it, such as --out parts (out='parts')",
        )


def _check_replaceable(folder: Path, entries: set[str], *, force: bool) -> None:
    if not force:
        raise PartitionError(
            f"the folder {folder} is not empty",
            where=str(folder),
            remedy="choose another folder, or replace the partition there with --force (force=True)",
        )
    others = sorted(name for name in entries if name != MANIFEST and not name.startswith("part-"))
    if others or MANIFEST not in entries:
        raise PartitionError(
            f"the folder {folder} holds other files than a partition, which are not overwritten",
            where=str(folder / (others or sorted(entries))[0]),
            remedy="choose another folder, or move these files",
        )


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PartitionError(
            f"the partition cannot be written: {error.strerror or error}",
            where=str(folder),
            remedy="choose a folder that does not exist yet, on a writable disk with room for the graph",
        ) from error


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that takes the place of ``folder`` if the block succeeds, and is removed otherwise."""
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        new, old = Path(name) / "new", Path(name) / "old"
        new.mkdir()
        yield new
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except BaseException:
            if old.exists():
                old.rename(folder)
            raise
