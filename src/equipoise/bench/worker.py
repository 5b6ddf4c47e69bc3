"""One measurement per process: ``python -m equipoise.bench.worker`` reads a JSON request and prints a JSON response.

Separate processes keep the threads, the compiled code and the memory of one measurement from affecting another.
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

from equipoise.bench.cases import Case, load_graph
from equipoise.bench.competitors import (
    DGL,
    EMPTY_NETWORK,
    LEARNING_RATE,
    EmptyNetwork,
    build_stack,
    check_agreement,
    compiled_variants,
    dgl_available,
    dgl_variant,
    plain_loop_timer,
    pyg_variants,
    train_timer,
)
from equipoise.bench.mini_batches import time_mini_batches
from equipoise.bench.recorder_cost import measure_recorder_cost
from equipoise.bench.report import EQUIPOISE, IsolatedRun, Timing
from equipoise.bench.roofline import Throughput, last_level_cache, roofline_milliseconds, throughput_timers
from equipoise.bench.timing import Timer, interleave, peak_memory, reset_peak_memory
from equipoise.errors import DataError, EquipoiseError
from equipoise.training.loop import train


def time_epochs(case: Case) -> Timing:
    """Time epochs of all implementations and, on one thread, the machine's throughput for the roofline; interleaved."""
    data = load_graph(case)
    threads = torch.get_num_threads()
    timers = _epoch_timers(case, data)
    probes = throughput_timers(data.num_nodes, case.width) if threads == 1 else {}
    samples = interleave(timers | {name: timer for name, (timer, _) in probes.items()}, case.rounds, case.epochs)
    throughput = {name: 1000 * work / median(samples.pop(name)) for name, (_, work) in probes.items()}
    roofline = _roofline(case, data, Throughput(**throughput)) if throughput else None
    return Timing(case.name, threads, samples, throughput, roofline)


def time_compiled_epochs(case: Case) -> Timing:
    """Time epochs of PyG's network compiled by torch.compile, with stock and with fused layers; interleaved."""
    data = load_graph(case)
    variants = compiled_variants(case, data)
    check_agreement(build_stack(case, data), data, {name: forward for name, (_, forward) in variants.items()})
    timers = {name: plain_loop_timer(model, forward, data) for name, (model, forward) in variants.items()}
    return Timing(case.name, torch.get_num_threads(), interleave(timers, case.rounds, case.epochs))


def time_scaling(cases: Sequence[Case]) -> list[dict[str, float]]:
    """Time all cases of a scaling series, interleaved.

    Args:
        cases: The series.

    Returns:
        For each case the median milliseconds per epoch, of equipoise and of PyG's fastest variant on dense features.
    """
    timers: dict[tuple[int, str], Timer] = {}
    for index, case in enumerate(cases):
        data = load_graph(case)
        timers[index, EQUIPOISE] = train_timer(build_stack(case, data), data)
        for name, (model, forward) in pyg_variants(case, data, every=False).items():
            timers[index, name] = plain_loop_timer(model, forward, data)
    samples = interleave(timers, cases[0].rounds, cases[0].epochs)
    return [{name: median(values) for (i, name), values in samples.items() if i == n} for n in range(len(cases))]


def measure_isolated(case: Case, implementation: str) -> IsolatedRun:
    """Measure time and peak memory of one implementation: several epochs of equipoise, or one epoch of PyG."""
    small = replace(case, layers=2, nodes=64, edges=256, dataset="synthetic-citation" if case.dataset else "")
    _median_epoch(small, load_graph(small), implementation)  # warm up: compilation and imports are not counted
    data = load_graph(case)
    reset_peak_memory()
    before = peak_memory()
    milliseconds = _median_epoch(case, data, implementation)
    return IsolatedRun(case.name, implementation, milliseconds, peak_memory() - before, peak_memory())


def time_first_epoch() -> float:
    """Seconds for initialisation and the first epoch in this process, compilation included."""
    case = Case("compile", layers=2, dataset="synthetic-citation")
    data = load_graph(case)
    start = time.perf_counter()
    train(build_stack(case, data), data, lr=LEARNING_RATE, epochs=1)
    return time.perf_counter() - start


def handle(request: dict[str, Any]) -> Any:
    """Run the requested task; cases arrive as plain data."""
    torch.set_num_threads(request["threads"])
    cases = [Case(**case) for case in request["cases"]]
    tasks: dict[str, Callable[[], Any]] = {
        "epochs": lambda: asdict(time_epochs(cases[0])),
        "scaling": lambda: time_scaling(cases),
        "isolated": lambda: asdict(measure_isolated(cases[0], request["implementation"])),
        "mini-batches": lambda: asdict(time_mini_batches(cases[0])),
        "compiled": lambda: asdict(time_compiled_epochs(cases[0])),
        "recorder": lambda: asdict(measure_recorder_cost(cases[0])),
        "first epoch": time_first_epoch,
    }
    return tasks[request["task"]]()


def _epoch_timers(case: Case, data: Data) -> dict[str, Timer]:
    model = build_stack(case, data)
    timers = {EQUIPOISE: train_timer(model, data)}
    if case.competitors:
        variants = pyg_variants(case, data)
        if dgl_available():
            variants[DGL] = dgl_variant(data, case.widths(data.num_features, data.classes), model.state_dict())
        check_agreement(model, data, {name: forward for name, (_, forward) in variants.items()})
        timers |= {name: plain_loop_timer(net, forward, data) for name, (net, forward) in variants.items()}
        timers[EMPTY_NETWORK] = train_timer(EmptyNetwork(model, data), data)
    return timers


def _roofline(case: Case, data: Data, throughput: Throughput) -> float:
    source, target = data.edge_index
    stored = int(data.x.count_nonzero())
    return roofline_milliseconds(
        data.num_nodes,
        int((source != target).sum()) + data.num_nodes,
        case.widths(data.num_features, data.classes),
        throughput,
        stored=stored if stored < data.x.numel() else None,
        cache=last_level_cache(),
    )


def _median_epoch(case: Case, data: Data, implementation: str) -> float:
    if implementation == EQUIPOISE:
        return median(train_timer(build_stack(case, data), data)(case.epochs))
    ((model, forward),) = pyg_variants(case, data, every=False).values()
    return median(plain_loop_timer(model, forward, data)(1))


if __name__ == "__main__":
    try:
        response = {"result": handle(json.load(sys.stdin))}
    except EquipoiseError as error:
        response = {"missing" if isinstance(error, DataError) else "failed": error.what}
    print(json.dumps(response))
