"""All measurements, one process after the other."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from equipoise import __version__
from equipoise.bench.cases import CASES, FIRST_CALL, SCALING, WATCHED, Case
from equipoise.bench.report import OURS, PYG, FirstCall, Note, Report, Step, Sweep, Timing, Watching
from equipoise.bench.scaling import SWEEPS, sweep_cases, swept
from equipoise.errors import DataError, MeasurementError

Task = Callable[[Report], None]


def plan(names: Sequence[str], threads: Sequence[int], *, quick: bool = False) -> list[tuple[str, Task]]:
    """What to do, in order, each with a few words on it."""
    tasks: list[tuple[str, Task]] = []
    for name in names:
        if name == FIRST_CALL:
            tasks.append(("compilation", _first_call))
        elif name == WATCHED.name:
            tasks.append(("what it costs to watch", _watching(WATCHED.quick() if quick else WATCHED)))
        elif name == SCALING:
            tasks += [(f"time against {over}", _time_sweep(over, quick)) for over in SWEEPS]
            tasks.append(("memory against edges", _memory_sweep(quick)))
        elif CASES[name].alone:
            contestants = (OURS, PYG) if CASES[name].rivals else (OURS,)
            tasks += [(f"{name}, {who}", _alone(CASES[name], who)) for who in contestants]
        else:
            case = CASES[name].quick() if quick else CASES[name]
            tasks += [(f"{name}, {count} thread{'s' * (count > 1)}", _epochs(case, count)) for count in threads]
    return tasks


def run(tasks: Sequence[tuple[str, Task]], on_task: Callable[[str], None]) -> Report:
    """Do them; what cannot be measured is noted, and the next one follows."""
    report = Report(machine=machine())
    for label, task in tasks:
        on_task(label)
        try:
            task(report)
        except DataError as error:
            report.notes.append(Note(label, error.what, failed=False))
        except MeasurementError as error:
            report.notes.append(Note(label, error.what, failed=True))
    return report


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    packages = {name: version(name) for name in ("torch", "torch_geometric", "numba")}
    versions = {"equipoise": __version__, "python": platform.python_version(), **packages}
    return {"processor": _processor(), "cores": str(os.cpu_count()), **versions}


def ask(
    task: str,
    cases: Sequence[Case] = (),
    *,
    threads: int = 1,
    contestant: str = OURS,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """The answer of a process that was started for this question alone."""
    question = {
        "task": task,
        "cases": [asdict(case) for case in cases],
        "threads": threads,
        "contestant": contestant,
    }
    done = subprocess.run(
        [sys.executable, "-m", "equipoise.bench.worker"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), **(environment or {})},
    )
    if done.returncode < 0:
        raise MeasurementError(
            f"the process was ended by signal {-done.returncode}: perhaps there was too little memory"
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise MeasurementError(lines[-1] if lines else f"the process ended with code {done.returncode}")
    said = json.loads(done.stdout.splitlines()[-1])
    if "missing" in said:
        raise DataError(said["missing"].splitlines()[0].rstrip(":"))
    if "failed" in said:
        raise MeasurementError(said["failed"])
    return said["answer"]


def _epochs(case: Case, threads: int) -> Task:
    return lambda report: report.timings.append(Timing(**ask("epochs", [case], threads=threads)))


def _alone(case: Case, contestant: str) -> Task:
    return lambda report: report.steps.append(Step(**ask("alone", [case], contestant=contestant)))


def _watching(case: Case) -> Task:
    def task(report: Report) -> None:
        report.watching = Watching(**ask("watching", [case]))

    return task


def _first_call(report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fresh, cached = (ask("first call", environment={"NUMBA_CACHE_DIR": folder}) for _ in range(2))
    report.first_call = FirstCall(fresh, cached)


def _time_sweep(over: str, quick: bool) -> Task:
    cases = sweep_cases(over, quick=quick)

    def task(report: Report) -> None:
        medians = ask("sweep", cases)
        mine = [row.pop(OURS) for row in medians]
        report.sweeps.append(
            Sweep(over, "ms", [swept(c, over) for c in cases], mine, [min(m.values()) for m in medians])
        )

    return task


def _memory_sweep(quick: bool) -> Task:
    cases = sweep_cases("edges", quick=quick)

    def peaks(contestant: str) -> list[float]:
        return [float(ask("alone", [case], contestant=contestant)["peak"]) for case in cases]

    return lambda report: report.sweeps.append(
        Sweep("edges", "bytes", [case.edges for case in cases], peaks(OURS), peaks(PYG))
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
