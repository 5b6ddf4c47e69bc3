"""Second part: the same deep network from four starts, trained side by side."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Empty
from typing import Any

import torch
from torch import nn

from equipoise.data.load import load_dataset
from equipoise.init.schemes import initialize_
from equipoise.nn.functions import compile_for
from equipoise.nn.stack import Stack
from equipoise.report.contrast import Run
from equipoise.train.history import History
from equipoise.train.protocol import train
from equipoise.train.quantities import changes, relative_gradient_norm

SCHEMES = ("xav", "xav-z", "bal-x", "bal-o")
GRADIENT_EPOCH = 25  # early, but past the first steps

News = tuple[str, int, float]  # scheme, epoch, validation accuracy
Report = Callable[[str, int, float], None]


@dataclass(frozen=True)
class Settings:
    """What all four runs have in common."""

    dataset: str = "synthetic-citation"
    root: Path | None = None
    layers: int = 10
    width: int = 64
    lr: float = 0.1
    epochs: int = 250
    seed: int = 0

    def __str__(self) -> str:
        network = f"{self.layers}-layer GATv2 of width {self.width}"
        return f"{network} on {self.dataset}, SGD {self.lr:g}, {self.epochs} epochs, seed {self.seed}"


def run_one(scheme: str, settings: Settings, report: Report) -> Run:
    """Train one network from one start."""
    data = load_dataset(settings.dataset, settings.root)
    model = Stack("gatv2", [data.num_features, *[settings.width] * (settings.layers - 1), data.classes])
    initialize_(model, scheme, generator=torch.Generator().manual_seed(settings.seed))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    gradients: list[float] = []

    def on_gradients(epoch: int, _: History) -> None:
        if epoch == min(GRADIENT_EPOCH, settings.epochs):
            gradients.extend(relative_gradient_norm(_features(conv)) for conv in model.convs)

    def on_epoch(epoch: int, history: History) -> None:
        report(scheme, epoch, history.val_accuracy[-1])

    history = train(model, data, lr=settings.lr, epochs=settings.epochs, on_gradients=on_gradients, on_epoch=on_epoch)
    best = history.best_state
    moved = changes(best.values(), [start[name] for name in best]).moved if best else 0.0
    return Run(scheme, replace(history, best_state={}), moved, gradients)


def run_all(settings: Settings, report: Report, jobs: int | None = None) -> list[Run]:
    """Train all four, one process a core, one thread each; ``report`` is called here as they go on."""
    jobs = min(jobs or os.cpu_count() or 1, len(SCHEMES))
    data = load_dataset(settings.dataset, settings.root)  # what is missing is said, or downloaded, once and here
    # Compiled is once and here, too: processes must not fill the cache side by side.
    for kernel, channels in (("gatv2", settings.width), ("gatv2", data.classes), ("gcn", settings.width)):
        compile_for(kernel, torch.float32, channels)
    context = multiprocessing.get_context("spawn")  # forked children inherit thread pools that no longer work
    queue: Queue[News] = context.Queue()
    stop = context.Event()
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker, initargs=(queue, stop)) as pool:
        runs = [pool.submit(_work, scheme, settings) for scheme in SCHEMES]
        try:
            _listen(queue, runs, report)
        except KeyboardInterrupt:
            stop.set()  # those that run, and those that a worker already holds
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [run.result() for run in runs]


def _listen(queue: Queue[News], runs: Sequence[Future[Run]], report: Report) -> None:
    while not all(run.done() for run in runs):
        try:
            report(*queue.get(timeout=0.2))
        except Empty:
            continue


def _start_worker(queue: Queue[News], stop: Event) -> None:
    torch.set_num_threads(1)
    _work.reach = queue, stop  # type: ignore[attr-defined]  # a pool hands such things to workers at their start only


def _work(scheme: str, settings: Settings) -> Run:
    queue, stop = _work.reach  # type: ignore[attr-defined]

    def report(*news: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        queue.put(news)

    return run_one(scheme, settings, report)


def _features(conv: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in conv.named_parameters() if name.endswith("weight")]
