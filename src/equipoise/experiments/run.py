"""One run: data → network → initialisation → training → result.

The modules below this one know nothing of stores or processes, those above it nothing of tensors.
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

from equipoise.data.catalog import dataset_info
from equipoise.data.load import load_dataset
from equipoise.experiments.checkpoint import Checkpoint
from equipoise.experiments.recording_plan import RecordingPlan
from equipoise.experiments.result import CURVES, Outcome, PackedRecording, Result, failed_result
from equipoise.experiments.spec import RunSpec
from equipoise.init.schemes import initialize_
from equipoise.nn.sparse_linear import to_csr_tensor
from equipoise.nn.stack import Stack
from equipoise.training.batched_laws import discover_on_small_graph
from equipoise.training.history import History, TrainingState
from equipoise.training.loop import train
from equipoise.training.optimizers import build_optimizer
from equipoise.training.rebalancer import Rebalancer
from equipoise.training.recorder import Recorder
from equipoise.training.recording import Recording


def run(spec: RunSpec, checkpoint: Checkpoint | None = None, recording_plan: RecordingPlan | None = None) -> Result:
    """Execute one run. An error during the run is a result too, with outcome ``"failed"``.

    Args:
        spec: the run's settings. On one machine and with one thread, equal specs give bit-identical numbers.
        checkpoint: where to save the training state and from where to resume. Runs with a recording have no
            checkpoint, because the recording made before an interruption would be lost.
        recording_plan: what to record; recording does not change the numbers.

    Returns:
        The result with curves and, if requested, the recording.

    Raises:
        KeyboardInterrupt: If training was interrupted.

    Example:
        >>> spec = RunSpec(dataset="synthetic-citation", depth=3, width=8, init="bal-o", lr=0.1, epochs=5)
        >>> run(spec).outcome
        'finished'
    """
    try:
        with torch.random.fork_rng(devices=[]):
            history, recording = _train(spec, checkpoint if recording_plan is None else None, recording_plan)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        return failed_result(spec, f"{type(error).__name__}: {lines[0]}", traceback.format_exc())
    if history.outcome == "interrupted":
        raise KeyboardInterrupt
    result = _result(spec, history)
    if recording_plan is None or recording is None:
        return result
    return replace(result, recording=PackedRecording(recording_plan, recording.to_bytes()))


def _train(
    spec: RunSpec, checkpoint: Checkpoint | None, plan: RecordingPlan | None
) -> tuple[History, Recording | None]:
    data = _load_data(spec.dataset, spec.undirected)
    torch.manual_seed(spec.seed)  # for schemes that keep the initialisation of PyG's layers
    model = build_network(spec, data)
    if spec.init != "default":
        generator = torch.Generator().manual_seed(spec.seed)
        inputs = (data.x, data.edge_index) if spec.calibrate else None
        initialize_(model, spec.init, beta=spec.beta, generator=generator, inputs=inputs, calibrate=spec.calibrate)
    optimizer = build_optimizer(spec.optimizer, model, spec.lr, spec.weight_decay)
    recorder = None if plan is None else _recorder(spec, model, data, plan)
    torch.manual_seed(spec.seed)  # for dropout
    state = checkpoint.load() if checkpoint is not None else None

    def on_epoch(_: int, history: History) -> None:
        if checkpoint is not None:
            checkpoint.save_if_due(lambda: TrainingState.snapshot(model, optimizer, history))

    resumed = state.restore(model, optimizer) if state is not None else None
    history = train(
        model,
        data,
        metric=spec.metric,
        optimizer=optimizer,
        epochs=spec.epochs,
        clip=spec.clip,
        rebalance=_rebalancer(spec, model, data, resumed),
        stop_loss=spec.stop_loss,
        patience=spec.patience,
        history=resumed,
        on_epoch=on_epoch,
        record=recorder,
    )
    return history, None if recorder is None else recorder.recording


def _rebalancer(spec: RunSpec, model: Stack, data: Data, resumed: History | None) -> Rebalancer | None:
    if spec.rebalance is None:
        return None
    laws = discover_on_small_graph(model, data.num_features)
    rebalancer = Rebalancer(laws, spec.rebalance, spec.rebalance_criterion, moments=spec.rebalance_moments)
    rebalancer.steps = 0 if resumed is None else resumed.epochs
    return rebalancer


def _recorder(spec: RunSpec, model: Stack, data: Data, plan: RecordingPlan) -> Recorder:
    laws = discover_on_small_graph(model, data.num_features) if "balance" in plan.quantities else []
    # ``most`` makes a run that stops early have as many samples as one of full length.
    most = max(1, spec.epochs // plan.every)
    return Recorder(model, laws, every=1, quantities=plan.quantities, most=most, alerts=False)


@lru_cache(maxsize=2)  # consecutive runs share a data set, whose edges then are sorted only once
def _load_data(dataset: str, undirected: bool) -> Data:
    return load_dataset(dataset, undirected=undirected)


def build_network(spec: RunSpec, data: Data) -> Stack:
    """Build the network of a run, not yet initialised by its scheme."""
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
        skip=spec.skip,
        norm=spec.norm,
        jk=spec.jk,
    )


def compile_kernels(specs: Iterable[RunSpec]) -> None:
    """Compile the kernels that these runs need, so that worker processes load them from the cache.

    Kernels are compiled per width, for symmetric and directed graphs, and for dense and sparse features.
    """
    edges = (torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0], [1]]))
    features = torch.eye(3)
    sparse = to_csr_tensor(features)
    for spec in dict.fromkeys(replace(spec, depth=min(spec.depth, 2), seed=0, lr=1.0, epochs=1) for spec in specs):
        model = build_network(spec, Data(x=features, classes=dataset_info(spec.dataset).classes))
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
            test_accuracy=history.best_test_metric,
            val_accuracy=history.best_val_metric,
            best_epoch=history.best_epoch,
        )
    return result.with_environment()
