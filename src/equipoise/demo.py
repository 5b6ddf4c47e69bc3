"""The demo: laws and imbalance of a stock GAT, then one deep network trained with four initialisation schemes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Empty

import numpy as np
import torch
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor, nn

from equipoise.data.load import load_dataset
from equipoise.init.schemes import initialize_
from equipoise.laws.discover import discover
from equipoise.laws.rebalance import rebalance_
from equipoise.nn.autograd import compile_attention_kernels
from equipoise.nn.sparse_product import compile_sparse_kernels
from equipoise.nn.stack import Stack
from equipoise.report.plots.imbalance import ImbalancePanel, draw_imbalance, gather_imbalance
from equipoise.report.plots.schemes import SchemeRun
from equipoise.report.plots.style import save_figure
from equipoise.training.history import History
from equipoise.training.loop import train
from equipoise.training.quantities import relative_change_stats, relative_gradient_norm

SCHEMES = ("xav", "xav-z", "bal-x", "bal-o")
GRADIENT_EPOCH = 25  # early, but after the initial transient

EpochProgress = tuple[str, int, float]  # scheme, epoch, validation accuracy
ProgressCallback = Callable[[str, int, float], None]


@dataclass(frozen=True)
class DemoSettings:
    """Settings shared by the four training runs."""

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


def show_laws(path: Path, console: Console) -> Path:
    """Print the laws of a stock GAT and its imbalance before and after ``rebalance_``, and draw both.

    Args:
        path: File of the figure.
        console: Console to print to.

    Returns:
        The path of the figure.
    """
    with console.status("discovering the laws of a 3-layer GAT from its gradients …"):
        model, x, edge_index = _stock_gat()
        laws = discover(model, x, edge_index)
    console.print("[bold]All rescaling laws of a stock 3-layer GATv2[/bold], discovered from its gradients:\n")
    for law in laws:
        console.print(f"  {law}", markup=False, highlight=False, soft_wrap=True)
    with torch.no_grad():
        before, output = gather_imbalance(laws, "default initialisation"), model(x, edge_index)
        rebalance_(laws)
        after = gather_imbalance(laws, "after rebalance_, same outputs")
        change = float((model(x, edge_index) - output).abs().max() / output.abs().max())
    console.print("\n[bold]Imbalance[/bold] c of a neuron: squared norm of its incoming minus its outgoing weights\n")
    console.print(_imbalance_table(before, after))
    console.print(f"\nThe network computes the same function: relative change of its outputs {change:.0e}.")
    return save_figure(draw_imbalance([before, after]), path)


def train_schemes(settings: DemoSettings, on_epoch: ProgressCallback, jobs: int | None = None) -> list[SchemeRun]:
    """Train one network per scheme in parallel processes of one thread each.

    Args:
        settings: Settings of all runs.
        on_epoch: Called in this process with scheme, epoch and validation accuracy.
        jobs: Number of processes; by default one per core.

    Returns:
        One run per scheme.

    Raises:
        KeyboardInterrupt: After the processes were stopped.
    """
    jobs = min(jobs or os.cpu_count() or 1, len(SCHEMES))
    data = load_dataset(settings.dataset, settings.root)  # download once, and report missing files once
    # Compile once: concurrent processes must not write the kernel cache at the same time.
    for channels in (settings.width, data.classes):
        compile_attention_kernels("gatv2", torch.float32, channels)
    compile_sparse_kernels(torch.float32, settings.width)
    context = multiprocessing.get_context("spawn")  # forked children inherit unusable thread pools
    queue: Queue[EpochProgress] = context.Queue()
    stop = context.Event()
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_init_worker, initargs=(queue, stop)) as pool:
        with _ignore_interrupt():  # which the workers inherit: Ctrl-C reaches this process, which stops them
            runs = [pool.submit(_train_in_worker, scheme, settings) for scheme in SCHEMES]
        try:
            _forward_progress(queue, runs, on_epoch)
        except KeyboardInterrupt:
            stop.set()  # ends running tasks, and those already handed to a worker
            pool.shutdown(cancel_futures=True)  # and waits: a worker that is starting needs this process
            raise
        return [run.result() for run in runs]


def train_scheme(scheme: str, settings: DemoSettings, on_epoch: ProgressCallback) -> SchemeRun:
    """Train one network initialised with ``scheme``."""
    data = load_dataset(settings.dataset, settings.root)
    model = Stack("gatv2", [data.num_features, *[settings.width] * (settings.layers - 1), data.classes])
    initialize_(model, scheme, generator=torch.Generator().manual_seed(settings.seed))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    gradients: list[float] = []

    def record_gradients(epoch: int, _: History) -> None:
        if epoch == min(GRADIENT_EPOCH, settings.epochs):
            gradients.extend(relative_gradient_norm(_weight_matrices(conv)) for conv in model.convs)

    def report_epoch(epoch: int, history: History) -> None:
        on_epoch(scheme, epoch, history.val_metric[-1])

    history = train(
        model, data, lr=settings.lr, epochs=settings.epochs, on_gradients=record_gradients, on_epoch=report_epoch
    )
    best = history.best_state
    moved = relative_change_stats(best.values(), [initial[name] for name in best]).moved if best else 0.0
    return SchemeRun(scheme, replace(history, best_state={}), moved, gradients)


def _stock_gat() -> tuple[nn.Module, Tensor, Tensor]:
    """PyG's GATv2 with three layers and its default initialisation, and a small random graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation warnings from PyG's imports
        from torch_geometric.nn import GAT

    torch.manual_seed(0)
    model = GAT(100, 64, num_layers=3, out_channels=7, v2=True, act="relu", share_weights=True, bias=False)
    return model, torch.rand(60, 100), torch.randint(0, 60, (2, 240))


def _imbalance_table(before: ImbalancePanel, after: ImbalancePanel) -> Table:
    headers = ("median c", "largest |c|", "largest |c| after rebalance_")
    table = Table("law of", *(Column(header, justify="right") for header in headers))
    for label, old, new in zip(before.labels, before.values, after.values, strict=True):
        table.add_row(label, f"{np.median(old):+.3f}", f"{np.abs(old).max():.3f}", f"{np.abs(new).max():.1e}")
    return table


@contextmanager
def _ignore_interrupt() -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _forward_progress(
    queue: Queue[EpochProgress], runs: Sequence[Future[SchemeRun]], on_epoch: ProgressCallback
) -> None:
    while not all(run.done() for run in runs):
        try:
            on_epoch(*queue.get(timeout=0.2))
        except Empty:
            continue


def _init_worker(queue: Queue[EpochProgress], stop: Event) -> None:
    torch.set_num_threads(1)
    # A pool passes queues and events to its workers only through the initializer.
    _train_in_worker.channel = queue, stop  # type: ignore[attr-defined]


def _train_in_worker(scheme: str, settings: DemoSettings) -> SchemeRun:
    queue, stop = _train_in_worker.channel  # type: ignore[attr-defined]

    def on_epoch(*progress: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        queue.put(progress)

    return train_scheme(scheme, settings, on_epoch)


def _weight_matrices(conv: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in conv.named_parameters() if name.endswith("weight")]
