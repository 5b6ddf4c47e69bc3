"""Training on the parts of a graph, one process per part: what ``equipoise train --parts`` does on every rank."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from equipoise.commands.terminal import epoch_bar
from equipoise.data.catalog import CATALOG, Metric
from equipoise.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from equipoise.distributed.parts.part import Manifest, Part
    from equipoise.training.history import History


def restarts() -> int:
    """How often torchrun may restart this job; 0 without torchrun."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))


def default_checkpoint(parts: Path) -> Path | None:
    """The checkpoint file of a job that torchrun may restart; None for any other job."""
    return parts / "checkpoint.pt" if restarts() else None


def train_on_part(
    model: nn.Module,
    part: Part,
    settings: Mapping[str, Any],
    *,
    checkpoint: Path | None,
    interval: float,
    timeout: float,
) -> History:
    """Train, show progress on rank 0, save checkpoints, and continue from the last one.

    Args:
        model: the network, initialised.
        part: the part of this rank.
        settings: all settings of the run; a checkpoint of other settings is not used.
        checkpoint: the checkpoint file; None for none.
        interval: seconds between two checkpoints.
        timeout: seconds that a rank waits for the others.

    Returns:
        The history of the run.
    """
    import torch

    from equipoise.distributed.process_group import join_process_group
    from equipoise.experiments.rank_checkpoint import RankCheckpoint
    from equipoise.training.loop import train
    from equipoise.training.optimizers import get_optimizer

    join_process_group(part.rank, part.parts, timeout=timeout)
    part = replace(part, x=_convert_features(part.x))
    torch.manual_seed(settings["seed"] + part.rank)  # dropout differs between ranks
    optimizer = get_optimizer(settings["optimizer"], model, settings["lr"], settings["weight_decay"])
    key = hashlib.sha256(json.dumps({**settings, "parts": part.manifest.fingerprint}).encode()).hexdigest()
    saved = None if checkpoint is None else RankCheckpoint(checkpoint, key, part.rank, interval)
    history = None if saved is None else saved.restore(model, optimizer)
    with _report_termination(part.rank), _progress(part.rank, settings["epochs"]) as show:

        def on_epoch(epoch: int, current: History) -> None:
            show(epoch, current)
            if saved is not None:
                saved.save_if_due(model, optimizer, current)

        history = train(
            model,
            part,
            metric=_metric(part.manifest),
            optimizer=optimizer,
            epochs=settings["epochs"],
            history=history,
            on_epoch=on_epoch,
            timeout=timeout,
        )
    if history.outcome == "interrupted":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # torchrun sends a second one
    elif saved is not None:
        saved.remove()
    return history


def _metric(manifest: Manifest) -> Metric:
    """The metric of the data set that was partitioned; accuracy for any other graph."""
    info = CATALOG.get(manifest.name)
    return info.metric if info is not None and info.nodes == manifest.num_nodes else "accuracy"


def _convert_features(x: Tensor) -> Tensor:
    """Features in float32, in which the command computes."""
    if x.is_complex():
        raise TrainingError(f"the features are of {x.dtype}", remedy="partition the graph with real features")
    return x.float()


@contextmanager
def _progress(rank: int, epochs: int) -> Iterator[Callable[[int, History], None]]:
    if rank:
        yield lambda _epoch, _history: None
        return
    with epoch_bar(epochs) as on_epoch:
        yield on_epoch


@contextmanager
def _report_termination(rank: int) -> Iterator[None]:
    """Say why this rank ends when torchrun terminates it, which it does as soon as another rank has failed."""

    def report(number: int, _frame: object) -> None:
        typer.echo(f"rank {rank}: terminated, as another rank or torchrun itself has been ended", err=True)
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, report)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
