"""Measure large stores and many short runs.

    python benchmarks/load.py store --runs 100000     # seconds to write, open, list, export, report; size of the page
    python benchmarks/load.py runs --runs 5000        # tiny runs through the process executor: cores busy, memory
    python benchmarks/load.py runs --runs 5000 --ray  # the same through a local Ray cluster

The runs of the first are invented: accuracies and curves are random numbers. Commands are timed as separate processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from equipoise.experiments.executors import Executor, available_cores, process_executor
from equipoise.experiments.parser import experiment_names, load_experiment
from equipoise.experiments.result import Result
from equipoise.experiments.run import run
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.store import Store
from equipoise.experiments.sweep import SweepCallback, sweep

TICKS = os.sysconf("SC_CLK_TCK")
CURVE_EPOCHS = 20


def invented_results(count: int) -> Iterator[Result]:
    """The runs of the paper's experiments with more and more seeds."""
    noise, environment = np.random.default_rng(0), Result(spec=_spec(0), outcome="finished").with_environment()
    specs = list(dict.fromkeys(spec for name in experiment_names() for spec in load_experiment(name).specs))
    endless = (replace(spec, seed=spec.seed + 100 * k) for k in itertools.count() for spec in specs)
    for spec in itertools.islice(endless, count):
        yield replace(
            environment,
            spec=spec,
            test_accuracy=float(noise.random()),
            val_accuracy=float(noise.random()),
            best_epoch=7,
            epochs=CURVE_EPOCHS,
            seconds=1.0,
            curves={name: noise.random(CURVE_EPOCHS, dtype=np.float32) for name in ("loss", "val_accuracy")},
        )


def _spec(seed: int) -> RunSpec:
    return RunSpec(dataset="synthetic-citation", depth=2, width=8, lr=0.1, epochs=10, seed=seed)


@contextmanager
def timed(name: str, numbers: dict[str, float]) -> Iterator[None]:
    """Wall-clock and processor seconds, of child processes too; the latter hardly depend on other work."""
    start, before = time.perf_counter(), sum(os.times()[:4])
    yield
    seconds, busy = time.perf_counter() - start, sum(os.times()[:4]) - before
    numbers[name], numbers[f"{name}, processor"] = round(seconds, 2), round(busy, 2)
    print(f"{name:<24} {seconds:>8.2f} s {busy:>8.2f} s of processor time", flush=True)


def measure_store(count: int, folder: Path) -> dict[str, float]:
    numbers: dict[str, float] = {"runs": count}
    path = folder / "large.sqlite"
    with timed("write", numbers), Store(path) as store:
        store.merge(invented_results(count))
    with timed("open and outcomes", numbers), Store(path) as store:
        assert len(store.outcomes()) == count
    with timed("all results", numbers), Store(path) as store:
        assert len(store.results()) == count
    page, table = folder / "page.html", folder / "table.csv"
    for name, arguments in {
        "status": ["status"],
        "store check": ["store", "check"],
        "store export": ["store", "export", str(table)],
        "report": ["report", "--out", str(folder / "tables")],
        "report --html": ["report", "--html", str(page)],
    }.items():
        command = [sys.executable, "-m", "equipoise", *arguments, "--store", str(path)]
        with timed(name, numbers):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for name, file in {"store": path, "table": table, "page": page}.items():
        numbers[f"{name} MB"] = round(file.stat().st_size / 1e6, 2)
        print(f"{name:<24} {numbers[f'{name} MB']:>8.2f} MB")
    return numbers


class Sampler(SweepCallback):
    """Samples processor time and memory of this process and its descendants once per second."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float, float, float]] = []  # seconds, processor seconds, bytes, idle seconds
        self.ended: list[float] = []  # when each run ended
        self.end = threading.Event()
        self.spent: dict[int, float] = {}

    def on_run_end(self, result: Result) -> None:  # noqa: ARG002 - only the time counts
        self.ended.append(time.monotonic())

    def sample(self) -> None:
        while not self.end.wait(1.0):
            memory = 0.0
            for pid in _descendants(os.getpid()):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                except OSError:
                    continue
                self.spent[pid] = (int(fields[11]) + int(fields[12])) / TICKS
                memory += pages * os.sysconf("SC_PAGE_SIZE")
            self.samples.append((time.monotonic(), sum(self.spent.values()), memory, _idle_seconds()))


def _idle_seconds() -> float:
    """Idle time of all cores of the machine since it started, the sum of idle and waiting for the disk."""
    return sum(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[4:6])) / TICKS


def _descendants(root: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, layer = [root], [root]
    while layer := [pid for pid, parent in parents.items() if parent in layer]:
        found += layer
    return found


def measure_runs(count: int, executor: Executor, folder: Path) -> dict[str, float]:
    sampler = Sampler()
    thread = threading.Thread(target=sampler.sample, daemon=True)
    with Store(folder / "runs.sqlite") as store:
        run(_spec(0))  # compiles the kernels
        thread.start()
        start = time.monotonic()
        results = sweep([_spec(seed) for seed in range(count)], store, executor, sampler)
        seconds = time.monotonic() - start
    sampler.end.set()
    thread.join()
    failed = sum(result.outcome == "failed" for result in results)
    # From the first fifth of the runs on, all processes have started and loaded their data; they stop after the last.
    steady = [sample for sample in sampler.samples if sampler.ended[count // 5] < sample[0] < sampler.ended[-1]]
    (first, before, low, idle_before), (last, after, high, idle_after) = steady[0], steady[-1]
    capacity = (last - first) * available_cores()
    numbers = {
        "runs": count,
        "failed": failed,
        "seconds": round(seconds, 1),
        "runs per second": round(count / seconds, 2),
        "cores busy %": round(100 * (after - before) / capacity, 1),  # with these runs
        "cores idle %": round(
            100 * (idle_after - idle_before) / capacity, 1
        ),  # neither with these runs nor with others
        "memory at start MB": round(low / 1e6),
        "memory at end MB": round(high / 1e6),
    }
    for name, number in numbers.items():
        print(f"{name:<24} {number:>10}")
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("store", "runs"))
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        if arguments.what == "store":
            numbers = measure_store(arguments.runs, Path(folder))
        else:
            executor = process_executor()
            if arguments.ray:
                from equipoise.experiments.ray_executor import ray_executor  # noqa: PLC0415 - an optional dependency

                executor = ray_executor("local")
            numbers = measure_runs(arguments.runs, executor, Path(folder))
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
