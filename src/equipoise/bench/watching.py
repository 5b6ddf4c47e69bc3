"""What it costs to watch: the time that a recorder adds to an epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from torch_geometric.data import Data

from equipoise.bench.cases import Case
from equipoise.bench.contestants import RATE, network
from equipoise.bench.graphs import graph_of
from equipoise.bench.report import Watching
from equipoise.laws.law import Law
from equipoise.nn.stack import Stack
from equipoise.train.protocol import train
from equipoise.train.recorder import GROUPS, Recorder
from equipoise.train.small_graph import laws_on_small_graph

EVERYTHING = "everything"


def watching(case: Case) -> Watching:
    """Milliseconds of an epoch, and of a record of everything and of each group by itself."""
    data = graph_of(case)
    model = network(case, data)
    laws = laws_on_small_graph(model, data.num_features)
    groups = {EVERYTHING: GROUPS, **{group: (group,) for group in GROUPS}}
    measured = {name: _record(model, data, laws, chosen, case) for name, chosen in groups.items()}
    return Watching(
        case.name,
        epochs={name: epoch for name, (epoch, _) in measured.items()},
        records={name: record for name, (_, record) in measured.items()},
    )


def _record(model: Stack, data: Data, laws: Sequence[Law], groups: Sequence[str], case: Case) -> tuple[float, float]:
    """An epoch without a record, and what a record adds to it.

    Every fourth epoch is recorded. Hooks are on from the evaluation before it, so these two epochs, whole, are compared
    with the two that follow: both pairs share whatever else the machine does.
    """
    ends: list[float] = []
    record = Recorder(model, laws, every=4, quantities=groups)
    count = 4 * case.rounds * case.epochs + 3
    train(model, data, lr=RATE, epochs=count, record=record, on_epoch=lambda *_: ends.append(time.perf_counter()))
    spent = [1000 * (later - earlier) for earlier, later in pairwise(ends)][1:]  # of epochs 3, 4, 5, 6, …
    fours = list(zip(spent[0::4], spent[1::4], spent[2::4], spent[3::4], strict=False))
    without = median(epoch for _, _, *after in fours for epoch in after)
    return without, median(before + recorded - first - second for before, recorded, first, second in fours)
