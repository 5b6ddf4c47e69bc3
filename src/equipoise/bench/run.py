"""Run a benchmark: plan its tasks and measure each in its own process, one after another."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from equipoise import __version__
from equipoise.bench.cases import (
    CASES,
    COMPILED_CASE,
    FIRST_CALL,
    MINI_BATCH_CASE,
    RANK_CASES,
    RECORDER_CASE,
    SCALING,
    SCALING_SERIES,
    Case,
    scaling_cases,
    scaling_value,
)
from equipoise.bench.ranks import measure_ranks
from equipoise.bench.report import (
    EQUIPOISE,
    PYG,
    BenchReport,
    FirstCall,
    IsolatedRun,
    RecorderCost,
    ScalingCurve,
    SkippedTask,
    Timing,
)
from equipoise.errors import ChoiceError, DataError, MeasurementError
from equipoise.kernels.simd import has_avx512

Task = Callable[[BenchReport], None]  # measures and adds to the report
Worker = Callable[..., Any]  # `run_worker` with the environment of an instruction set
ISAS = ("native", "avx2")
OTHER_TIMINGS = {case.name: case for case in (MINI_BATCH_CASE, COMPILED_CASE)}  # by the names of the worker's tasks


def plan_tasks(
    names: Sequence[str], threads: Sequence[int], *, quick: bool = False, isa: str = "native"
) -> list[tuple[str, Task]]:
    """Return the tasks of the selected cases, in order, each with a label.

    Args:
        names: Names of cases.
        threads: Numbers of threads.
        quick: Measure with few rounds.
        isa: Instruction set, see :func:`isa_environment`.

    Returns:
        Labels and tasks.
    """
    tasks: list[tuple[str, Task]] = []
    worker: Worker = partial(run_worker, environment=isa_environment(isa))
    for name in names:
        if name == FIRST_CALL:
            tasks.append(("compilation", _first_call(isa)))
        elif name == RECORDER_CASE.name:
            case = RECORDER_CASE.quick() if quick else RECORDER_CASE
            tasks.append(("cost of recording", _recorder_cost(worker, case)))
        elif name in OTHER_TIMINGS:
            case = OTHER_TIMINGS[name].quick() if quick else OTHER_TIMINGS[name]
            tasks.append((f"{name}, 1 thread", _timing(worker, name, case)))
        elif name in RANK_CASES:
            case, counts = RANK_CASES[name]
            tasks += [
                (f"{name}, {count} rank{'s' * (count > 1)}", _ranks(case.quick() if quick else case, count, isa))
                for count in counts
            ]
        elif name == SCALING:
            tasks += [(f"time over {variable}", _time_scaling(worker, variable, quick)) for variable in SCALING_SERIES]
            tasks.append(("memory over edges", _memory_scaling(worker, quick)))
        elif CASES[name].isolated:
            implementations = (EQUIPOISE, PYG) if CASES[name].competitors else (EQUIPOISE,)
            tasks += [(f"{name}, {which}", _isolated(worker, CASES[name], which)) for which in implementations]
        else:
            case = CASES[name].quick() if quick else CASES[name]
            tasks += [
                (f"{name}, {count} thread{'s' * (count > 1)}", _timing(worker, "epochs", case, count))
                for count in threads
            ]
    return tasks


def run_tasks(tasks: Sequence[tuple[str, Task]], on_task: Callable[[str], None], *, isa: str = "native") -> BenchReport:
    """Run all tasks; a task that cannot be measured is recorded as skipped.

    Args:
        tasks: Labels and tasks.
        on_task: Called with the label before each task.
        isa: Instruction set that the tasks were planned for, for the report.

    Returns:
        The report.
    """
    report = BenchReport(machine=machine_info(isa))
    for label, task in tasks:
        on_task(label)
        try:
            task(report)
        except DataError as error:
            report.skipped.append(SkippedTask(label, error.what, failed=False))
        except MeasurementError as error:
            report.skipped.append(SkippedTask(label, error.what, failed=True))
    return report


def machine_info(isa: str = "native") -> dict[str, str]:
    """Processor, cores, instruction set and versions on which the numbers depend."""
    packages = {name: version(name) for name in ("torch", "torch_geometric", "numba")}
    versions = {"equipoise": __version__, "python": platform.python_version(), **packages}
    instructions = "AVX-512" if isa == "native" and has_avx512() else isa.replace("native", "avx2").upper()
    return {"processor": _processor(), "cores": str(os.cpu_count()), "instructions": instructions, **versions}


def isa_environment(isa: str) -> dict[str, str]:
    """Environment variables that restrict Numba, torch, MKL and oneDNN to an instruction set.

    Args:
        isa: ``"native"`` for no restriction, or ``"avx2"``.

    Returns:
        The variables; empty for ``"native"``.

    Raises:
        MeasurementError: If the processor does not have the instruction set.
        ChoiceError: If the name is unknown.
    """
    if isa not in ISAS:
        raise ChoiceError("instruction set", isa, ISAS)
    if isa == "native":
        return {}
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if not features.get("avx2"):
        raise MeasurementError("this processor has no AVX2", where=f"--isa {isa}", remedy="leave out --isa")
    enabled = {name: on and "avx512" not in name and "avx10" not in name for name, on in features.items()}
    return {
        "NUMBA_CPU_FEATURES": ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(enabled.items())),
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    }


def run_worker(
    task: str,
    cases: Sequence[Case] = (),
    *,
    threads: int = 1,
    implementation: str = EQUIPOISE,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Run one task in a new worker process.

    Args:
        task: Name of a task of :mod:`equipoise.bench.worker`.
        cases: Cases to measure.
        threads: Number of threads of torch and of the kernels.
        implementation: Implementation to measure, for isolated runs.
        environment: Additional environment variables.

    Returns:
        The result as plain data.

    Raises:
        DataError: If a data set is missing.
        MeasurementError: If the task failed or its process died.
    """
    request = {
        "task": task,
        "cases": [asdict(case) for case in cases],
        "threads": threads,
        "implementation": implementation,
    }
    process = subprocess.run(
        [sys.executable, "-m", "equipoise.bench.worker"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), **(environment or {})},
    )
    if process.returncode < 0:
        raise MeasurementError(f"the process was killed by signal {-process.returncode}, possibly out of memory")
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        raise MeasurementError(lines[-1] if lines else f"the process exited with code {process.returncode}")
    response = json.loads(process.stdout.splitlines()[-1])
    if "missing" in response:
        raise DataError(response["missing"].splitlines()[0].rstrip(":"))
    if "failed" in response:
        raise MeasurementError(response["failed"])
    return response["result"]


def _timing(worker: Worker, task: str, case: Case, threads: int = 1) -> Task:
    return lambda report: report.timings.append(Timing(**worker(task, [case], threads=threads)))


def _isolated(worker: Worker, case: Case, implementation: str) -> Task:
    return lambda report: report.isolated.append(
        IsolatedRun(**worker("isolated", [case], implementation=implementation))
    )


def _ranks(case: Case, ranks: int, isa: str) -> Task:
    return lambda report: report.ranks.append(measure_ranks(case, ranks, isa_environment(isa)))


def _recorder_cost(worker: Worker, case: Case) -> Task:
    def task(report: BenchReport) -> None:
        report.recorder = RecorderCost(**worker("recorder", [case]))

    return task


def _first_call(isa: str) -> Task:
    def task(report: BenchReport) -> None:
        with tempfile.TemporaryDirectory() as folder:
            environment = {"NUMBA_CACHE_DIR": folder, **isa_environment(isa)}
            fresh, cached = (run_worker("first epoch", environment=environment) for _ in range(2))
        report.first_call = FirstCall(fresh, cached)

    return task


def _time_scaling(worker: Worker, variable: str, quick: bool) -> Task:
    cases = scaling_cases(variable, quick=quick)
    x = [scaling_value(case, variable) for case in cases]

    def task(report: BenchReport) -> None:
        medians = worker("scaling", cases)
        equipoise = [row.pop(EQUIPOISE) for row in medians]
        report.scaling.append(ScalingCurve(variable, "ms", x, equipoise, [min(row.values()) for row in medians]))

    return task


def _memory_scaling(worker: Worker, quick: bool) -> Task:
    cases = scaling_cases("edges", quick=quick)

    def peaks(implementation: str) -> list[float]:
        return [float(worker("isolated", [case], implementation=implementation)["peak"]) for case in cases]

    return lambda report: report.scaling.append(
        ScalingCurve("edges", "bytes", [case.edges for case in cases], peaks(EQUIPOISE), peaks(PYG))
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
