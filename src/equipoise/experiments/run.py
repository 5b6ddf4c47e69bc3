"""One run: data → network → start → training → result.

Below this, nothing knows of files or processes; above it, nothing of tensors.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from torch_geometric.data import Data

from equipoise.data.catalog import catalog_entry
from equipoise.data.load import load_dataset
from equipoise.experiments.checkpoint import Checkpoint
from equipoise.experiments.result import CURVES, Outcome, Recorded, Result, failed
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.watch import Watch
from equipoise.init.schemes import initialize_
from equipoise.nn.features import sparse_rows
from equipoise.nn.stack import Skip, Stack
from equipoise.train.history import History
from equipoise.train.protocol import named_optimizer, train
from equipoise.train.recorder import Recorder
from equipoise.train.recording import Recording
from equipoise.train.small_graph import laws_on_small_graph
from equipoise.train.state import TrainingState


def run(spec: RunSpec, checkpoint: Checkpoint | None = None, watch: Watch | None = None) -> Result:
    """The result of one run; an error inside it is a result, too, with the outcome ``"failed"``.

    Args:
        spec: what to run. The same spec gives the same numbers, to the bit on one machine with one thread.
        checkpoint: where the state is kept on the way, and taken up from. A run that is watched does without: what
            was seen before a pause would be lost.
        watch: what to record beside; it changes no number.

    Example:
        >>> spec = RunSpec(dataset="synthetic-citation", depth=3, width=8, init="bal-o", lr=0.1, epochs=5)
        >>> run(spec).outcome
        'finished'
    """
    try:
        with torch.random.fork_rng(devices=[]):
            history, recording = _history(spec, checkpoint if watch is None else None, watch)
    except Exception as error:
        reason = str(error).splitlines() or [""]
        return failed(spec, f"{type(error).__name__}: {reason[0]}", traceback.format_exc())
    if history.outcome == "interrupted":
        raise KeyboardInterrupt
    recorded = Recorded(watch, recording.to_bytes()) if watch is not None and recording is not None else None
    return replace(_result(spec, history), recording=recorded)


def _history(spec: RunSpec, checkpoint: Checkpoint | None, watch: Watch | None) -> tuple[History, Recording | None]:
    data = _data(spec.dataset, spec.undirected)
    model = network(spec, data)
    initialize_(model, spec.init, beta=spec.beta, generator=torch.Generator().manual_seed(spec.seed))
    optimizer = named_optimizer(spec.optimizer, model, spec.lr, spec.weight_decay)
    recorder = None if watch is None else _recorder(spec, model, data, watch)
    torch.manual_seed(spec.seed)  # dropout
    state = checkpoint.load() if checkpoint is not None else None

    def on_epoch(_: int, history: History) -> None:
        if checkpoint is not None:
            checkpoint.offer(lambda: TrainingState.of(model, optimizer, history))

    history = train(
        model,
        data,
        optimizer=optimizer,
        epochs=spec.epochs,
        stop_loss=spec.stop_loss,
        patience=spec.patience,
        history=state.restore(model, optimizer) if state is not None else None,
        on_epoch=on_epoch,
        record=recorder,
    )
    return history, None if recorder is None else recorder.recording


def _recorder(spec: RunSpec, model: Stack, data: Data, watch: Watch) -> Recorder:
    laws = laws_on_small_graph(model, data.num_features) if "balance" in watch.quantities else []
    # A run that is over early is looked at as often as a long one.
    return Recorder(model, laws, every=1, quantities=watch.quantities, most=max(1, spec.epochs // watch.every))


@lru_cache(maxsize=2)  # runs on one data set follow each other, and sort its edges once
def _data(dataset: str, undirected: bool) -> Data:
    return load_dataset(dataset, undirected=undirected)


def network(spec: RunSpec, data: Data) -> Stack:
    """The network of a run, before it is initialised."""
    return Stack(
        spec.kind,
        [data.num_features, *[spec.width] * (spec.depth - 1), data.classes],
        spec.heads,
        spec.concat,
        out_heads=spec.out_heads,
        activation=spec.activation,
        dropout=spec.dropout,
        attention_dropout=spec.attention_dropout,
        input_dropout=spec.input_dropout,
        share_weights=spec.share_weights,
        bias=spec.bias,
        skip=cast(Skip | None, spec.skip),
    )


def compile_kernels(specs: Iterable[RunSpec]) -> None:
    """Compile what runs will need, once and here: processes would do it side by side.

    Kernels are made for a width, and others for graphs with and without an edge back, for dense and sparse features.
    """
    edges = (torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0], [1]]))
    features = torch.eye(3)
    sparse = sparse_rows(features)
    for spec in dict.fromkeys(replace(spec, depth=min(spec.depth, 2), seed=0, lr=1.0, epochs=1) for spec in specs):
        model = network(spec, Data(x=features, classes=catalog_entry(spec.dataset).classes))
        for edge_index in edges:
            for x in (features, sparse):
                model(x, edge_index).sum().backward()


def _result(spec: RunSpec, history: History) -> Result:
    result = Result(
        spec=spec,
        outcome=cast(Outcome, history.outcome),
        reason=history.reason,
        epochs=history.epochs,
        seconds=history.seconds,
        curves={name: np.array(getattr(history, name)[: history.epochs], dtype=np.float32) for name in CURVES},
    )
    if history.epochs:
        result = replace(
            result,
            test_accuracy=history.best_test_accuracy,
            val_accuracy=history.best_val_accuracy,
            best_epoch=history.best_epoch,
        )
    return result.stamped()
