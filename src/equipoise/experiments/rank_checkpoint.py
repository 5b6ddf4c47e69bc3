"""Checkpoints of a run on several ranks: rank 0 alone reads and writes the file."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from equipoise.distributed.process_group import all_agree, broadcast_object, gather_objects, raise_on_all_ranks
from equipoise.experiments.checkpoint import Checkpoint
from equipoise.training.history import History, TrainingState


class RankCheckpoint:
    """The checkpoint of one run. Weights, optimizer and history are the same on every rank; random states are not.

    Every rank calls every method.

    Args:
        path: the file; rank 0 only uses it, so that it may be on the disk of one machine.
        key: key of the run: settings and fingerprint of the partition.
        rank: of this process.
        interval: seconds between two checkpoints.
    """

    def __init__(self, path: Path, key: str, rank: int, interval: float = 60.0) -> None:
        self.rank, self._file = rank, Checkpoint(path, key, interval) if rank == 0 else None

    def restore(self, model: nn.Module, optimizer: Optimizer) -> History | None:
        """Load the last checkpoint into the model, its optimizer and the random generator of every rank.

        Args:
            model: the model.
            optimizer: its optimizer.

        Returns:
            The history to pass to :func:`~equipoise.train`; None without a checkpoint of this run.

        Raises:
            TrainingError: if the file is not a checkpoint, or one of another run.
            DistributedError: the same on the other ranks.
        """
        with raise_on_all_ranks():
            loaded = None if self._file is None else self._file.load(named=True)
        state = cast(TrainingState | None, broadcast_object(loaded))
        if state is None:
            return None
        random = state.random[self.rank].clone()  # torch.set_rng_state crashes on a view into a larger tensor
        return replace(state, random=random).restore(model, optimizer)

    def save_if_due(self, model: nn.Module, optimizer: Optimizer, history: History) -> None:
        """Save the state of all ranks if rank 0 finds that the last checkpoint is older than the interval.

        Args:
            model: the model.
            optimizer: its optimizer.
            history: the history so far.
        """
        if not all_agree(self._file is None or self._file.is_due()):  # rank 0 decides, as clocks differ
            return
        states: list[Any] = gather_objects(torch.get_rng_state())
        with raise_on_all_ranks():
            if self._file is not None:
                random: Tensor = torch.stack(states)
                self._file.save(replace(TrainingState.snapshot(model, optimizer, history), random=random))

    def remove(self) -> None:
        """Delete the file at the end of the run."""
        if self._file is not None:
            with suppress(OSError):  # the run is complete, and its result matters more
                self._file.path.unlink()
