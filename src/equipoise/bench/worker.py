"""One measurement in a process of its own, ``python -m equipoise.bench.worker``: a question in, an answer out, as JSON.

Threads, compiled code and memory of one measurement then have nothing to do with those of another.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

import torch
from torch_geometric.data import Data

from equipoise.bench.cases import Case
from equipoise.bench.clocks import Clock, interleave
from equipoise.bench.contestants import RATE, check_agreement, network, ours, pyg_variants, rival
from equipoise.bench.floor import Rates, floor_milliseconds, last_cache, rate_clocks
from equipoise.bench.graphs import graph_of
from equipoise.bench.memory import peak, reset_peak
from equipoise.bench.report import OURS, Step, Timing
from equipoise.bench.watching import watching
from equipoise.bench.with_dgl import DGL, dgl_is_here, dgl_variant
from equipoise.errors import DataError, EquipoiseError
from equipoise.train.protocol import train


def epochs(case: Case) -> Timing:
    """Time epochs of all contestants in turns and, on one thread, the rates that the floor is computed from."""
    data = graph_of(case)
    threads = torch.get_num_threads()
    clocks = _contestants(case, data)
    rates = rate_clocks(data.num_nodes, case.width) if threads == 1 else {}
    samples = interleave(clocks | {name: timed for name, (timed, _) in rates.items()}, case.rounds, case.epochs)
    measured = {name: 1000 * work / median(samples.pop(name)) for name, (_, work) in rates.items()}
    floor = _floor(case, data, Rates(**measured)) if measured else None
    return Timing(case.name, threads, samples, measured, floor)


def sweep(cases: Sequence[Case]) -> list[dict[str, float]]:
    """Milliseconds an epoch, case by case: ours, and PyG's at its best on dense features; all in turns."""
    clocks: dict[tuple[int, str], Clock] = {}
    for number, case in enumerate(cases):
        data = graph_of(case)
        clocks[number, OURS] = ours(network(case, data), data)
        for name, (model, forward) in pyg_variants(case, data, every=False).items():
            clocks[number, name] = rival(model, forward, data)
    samples = interleave(clocks, cases[0].rounds, cases[0].epochs)
    return [
        {name: median(values) for (n, name), values in samples.items() if n == number} for number in range(len(cases))
    ]


def alone(case: Case, contestant: str) -> Step:
    """Time and peak memory of one contestant: epochs of ours, or one epoch of PyG's."""
    small = replace(case, layers=2, nodes=64, edges=256, dataset="synthetic-citation" if case.dataset else "")
    _timed(small, graph_of(small), contestant)  # what is compiled or loaded at first use is not the case's
    data = graph_of(case)
    reset_peak()
    before = peak()
    milliseconds = _timed(case, data, contestant)
    return Step(case.name, contestant, milliseconds, peak() - before, peak())


def first_call() -> float:
    """Seconds to the end of the first epoch in this process, the start included: it runs the layers, so it compiles."""
    case = Case("compile", layers=2, dataset="synthetic-citation")
    data = graph_of(case)
    start = time.perf_counter()
    train(network(case, data), data, lr=RATE, epochs=1)
    return time.perf_counter() - start


def _contestants(case: Case, data: Data) -> dict[str, Clock]:
    model = network(case, data)
    clocks = {OURS: ours(model, data)}
    if case.rivals:
        variants = pyg_variants(case, data)
        if dgl_is_here():
            variants[DGL] = dgl_variant(data, case.widths(data.num_features, data.classes), model.state_dict())
        check_agreement(model, data, {name: forward for name, (_, forward) in variants.items()})
        clocks |= {name: rival(net, forward, data) for name, (net, forward) in variants.items()}
    return clocks


def _floor(case: Case, data: Data, rates: Rates) -> float:
    source, target = data.edge_index
    edges = int((source != target).sum()) + data.num_nodes
    stored = int(data.x.count_nonzero())
    return floor_milliseconds(
        data.num_nodes,
        edges,
        case.widths(data.num_features, data.classes),
        rates,
        stored=stored if stored < data.x.numel() else None,
        cache=last_cache(),
    )


def _timed(case: Case, data: Data, contestant: str) -> float:
    if contestant == OURS:
        return median(ours(network(case, data), data)(case.epochs))
    ((model, forward),) = pyg_variants(case, data, every=False).values()
    return median(rival(model, forward, data)(1))


def answer(question: dict[str, Any]) -> Any:
    """Do what the question names; its cases are plain data."""
    torch.set_num_threads(question["threads"])
    cases = [Case(**case) for case in question["cases"]]
    tasks: dict[str, Callable[[], Any]] = {
        "epochs": lambda: asdict(epochs(cases[0])),
        "sweep": lambda: sweep(cases),
        "alone": lambda: asdict(alone(cases[0], question["contestant"])),
        "watching": lambda: asdict(watching(cases[0])),
        "first call": first_call,
    }
    return tasks[question["task"]]()


if __name__ == "__main__":
    try:
        said = {"answer": answer(json.load(sys.stdin))}
    except EquipoiseError as error:
        said = {"missing" if isinstance(error, DataError) else "failed": error.what}
    print(json.dumps(said))
