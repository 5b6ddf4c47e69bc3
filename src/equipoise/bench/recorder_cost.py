"""Cost of recording: the time that a recorder adds to an epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from torch_geometric.data import Data

from equipoise.bench.cases import Case, load_graph
from equipoise.bench.competitors import LEARNING_RATE, build_stack
from equipoise.bench.report import RecorderCost
from equipoise.laws.law import Law
from equipoise.nn.stack import Stack
from equipoise.training.batched_laws import discover_on_small_graph
from equipoise.training.loop import train
from equipoise.training.recorder import GROUPS, Recorder

EVERYTHING = "everything"


def measure_recorder_cost(case: Case) -> RecorderCost:
    """Measure an epoch, and a record of all quantities together and of each group separately."""
    data = load_graph(case)
    model = build_stack(case, data)
    laws = discover_on_small_graph(model, data.num_features)
    selections = {EVERYTHING: GROUPS, **{group: (group,) for group in GROUPS}}
    costs = {name: _time_record(model, data, laws, groups, case) for name, groups in selections.items()}
    return RecorderCost(
        case.name,
        epochs={name: epoch for name, (epoch, _) in costs.items()},
        records={name: record for name, (_, record) in costs.items()},
    )


def _time_record(
    model: Stack, data: Data, laws: Sequence[Law], groups: Sequence[str], case: Case
) -> tuple[float, float]:
    """Time an epoch without a record, and what a record adds to it.

    Every fourth epoch is recorded. Hooks are active from the evaluation before it, so these two epochs are compared
    with the two that follow: both pairs share the current load of the machine.

    Returns:
        Milliseconds of an epoch and of a record.
    """
    ends: list[float] = []
    recorder = Recorder(model, laws, every=4, quantities=groups)
    count = 4 * case.rounds * case.epochs + 3
    train(
        model,
        data,
        lr=LEARNING_RATE,
        epochs=count,
        record=recorder,
        on_epoch=lambda *_: ends.append(time.perf_counter()),
    )
    times = [1000 * (after - before) for before, after in pairwise(ends)][1:]  # of epochs 3, 4, 5, 6, …
    quadruples = list(zip(times[0::4], times[1::4], times[2::4], times[3::4], strict=False))
    epoch = median(plain for _, _, *after in quadruples for plain in after)
    return epoch, median(before + recorded - first - second for before, recorded, first, second in quadruples)
