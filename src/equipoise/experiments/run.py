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
from equipoise.experiments.result import CURVES, Outcome, Result, failed
from equipoise.experiments.spec import RunSpec
from equipoise.init.schemes import initialize_
from equipoise.nn.stack import Skip, Stack
from equipoise.train.history import History
from equipoise.train.protocol import OPTIMIZERS, train
from equipoise.train.state import TrainingState


def run(spec: RunSpec, checkpoint: Checkpoint | None = None) -> Result:
    """The result of one run; an error inside it is a result, too, with the outcome ``"failed"``.

    Args:
        spec: what to run. The same spec gives the same numbers, to the bit on one machine with one thread.
        checkpoint: where the state is kept on the way, and taken up from.

    Example:
        >>> spec = RunSpec(dataset="synthetic-citation", depth=3, width=8, init="bal-o", lr=0.1, epochs=5)
        >>> run(spec).outcome
        'finished'
    """
    try:
        with torch.random.fork_rng(devices=[]):
            history = _history(spec, checkpoint)
    except Exception as error:
        reason = str(error).splitlines() or [""]
        return failed(spec, f"{type(error).__name__}: {reason[0]}", traceback.format_exc())
    if history.outcome == "interrupted":
        raise KeyboardInterrupt
    return _result(spec, history)


def _history(spec: RunSpec, checkpoint: Checkpoint | None) -> History:
    data = _data(spec.dataset, spec.undirected)
    model = network(spec, data)
    initialize_(model, spec.init, beta=spec.beta, generator=torch.Generator().manual_seed(spec.seed))
    optimizer = OPTIMIZERS[spec.optimizer](model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay)  # type: ignore[call-arg]
    torch.manual_seed(spec.seed)  # dropout
    state = checkpoint.load() if checkpoint is not None else None

    def on_epoch(_: int, history: History) -> None:
        if checkpoint is not None:
            checkpoint.offer(lambda: TrainingState.of(model, optimizer, history))

    return train(
        model,
        data,
        optimizer=optimizer,
        epochs=spec.epochs,
        stop_loss=spec.stop_loss,
        patience=spec.patience,
        history=state.restore(model, optimizer) if state is not None else None,
        on_epoch=on_epoch,
    )


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
    for spec in dict.fromkeys(replace(spec, depth=min(spec.depth, 2), seed=0, lr=1.0, epochs=1) for spec in specs):
        model = network(spec, Data(x=features, classes=catalog_entry(spec.dataset).classes))
        for edge_index in edges:
            for x in (features, features.to_sparse_csr()):
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
