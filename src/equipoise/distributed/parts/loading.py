"""Load the part of this rank."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from equipoise.distributed.parts.files import as_folder, read_arrays, read_manifest
from equipoise.distributed.parts.part import Part
from equipoise.distributed.process_group import environment_integer
from equipoise.errors import PartitionError
from equipoise.laws.validation import is_integer


def load_part(path: str | os.PathLike[str], rank: int | None = None, *, verify: bool = True) -> Part:
    """Load one part of a partitioned graph; see :func:`partition`.

    Every rank of a job calls it with the same path. Arrays are mapped from the files, so that features are read when
    they are used.

    Args:
        path: folder of the partition. It needs the manifest and the folder of this rank.
        rank: which part to load. By default the rank of the process group or of ``torchrun`` (the environment variables
            ``RANK`` and ``WORLD_SIZE``), whose number of ranks must be the number of parts; without either, 0 of 1.
        verify: compute the SHA-256 of every file. ``False`` saves one read of the part.

    Returns:
        The part.

    Raises:
        PartitionError: If the folder is not a partition, the part is missing or altered, the format version is
            another one, or the number of ranks is not the number of parts.
        DistributedError: If ``RANK`` or ``WORLD_SIZE`` is not a number.

    Example:
        >>> import tempfile
        >>> import equipoise as eq
        >>> folder = tempfile.mkdtemp()
        >>> _ = eq.partition(eq.load_dataset("synthetic-citation"), 2, folder, method="blocks")
        >>> part = eq.load_part(folder, rank=1)
        >>> part.rank, part.parts, len(part.x) == len(part.own)
        (1, 2, True)
    """
    folder = as_folder(path)
    stored = read_manifest(folder)
    manifest = stored.manifest
    if rank is None:
        rank = _rank_of_job(manifest.parts, folder)
    if not is_integer(rank) or not 0 <= rank < manifest.parts:
        raise PartitionError(
            f"there is no part {rank!r}", where=str(folder), remedy=f"choose a rank from 0 to {manifest.parts - 1}"
        )
    record = stored.ranks[rank]
    arrays = {name: torch.from_numpy(array) for name, array in read_arrays(folder, rank, record, verify=verify).items()}
    return Part(
        rank=rank,
        parts=manifest.parts,
        num_nodes=manifest.num_nodes,
        own=arrays["own"],
        halo=arrays["halo"],
        edge_index=arrays["edge_index"],
        send=torch.split(arrays["send"], record.send),
        receive=tuple(record.receive),
        x=arrays["x"],
        y=arrays.get("y"),
        train_mask=arrays.get("train_mask"),
        val_mask=arrays.get("val_mask"),
        test_mask=arrays.get("test_mask"),
        manifest=manifest,
        edge_attr=arrays.get("edge_attr"),
    )


def _rank_of_job(parts: int, folder: Path) -> int:
    """This process's rank, if the job has as many ranks as there are parts."""
    if dist.is_available() and dist.is_initialized():
        rank, ranks = dist.get_rank(), dist.get_world_size()
    else:
        rank, ranks = environment_integer("RANK", 0), environment_integer("WORLD_SIZE", 1)
    if ranks != parts:
        count = "1 rank" if ranks == 1 else f"{ranks} ranks"
        raise PartitionError(
            f"the partition has {parts} parts, but the job has {count}",
            where=str(folder),
            remedy=f"start {parts} ranks (torchrun --nproc-per-node {parts} … on one machine), or partition the graph "
            f"into {ranks} part{'s' * (ranks != 1)}; rank=… loads one part for inspection",
        )
    return rank
