"""Executors: run specs in processes of this machine, or on a cluster (:mod:`~equipoise.experiments.ray_executor`).

An executor is a function of specs and a run function. It yields each spec when its run starts and each result when its
run ends: exactly one result per spec, even if a process or node is lost.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler

from equipoise.experiments.cost import estimate_memory
from equipoise.experiments.memory import memory_limit, out_of_memory_kills, peak_memory
from equipoise.experiments.process_death import Death, children_peak
from equipoise.experiments.result import Result, failed_result
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.worker import READY, serve

log = logging.getLogger(__name__)

RunFunction = Callable[[RunSpec], Result]
Events = Generator[RunSpec | Result, None, None]  # a spec when its run starts, a result when it ends
Executor = Callable[[Sequence[RunSpec], RunFunction], Events]

TERMINATION_TIMEOUT = 5.0  # seconds between SIGTERM and SIGKILL
POLL_INTERVAL = 0.5  # seconds between two looks at memory and time of the running processes
MAX_FAULTS = 2  # a run that ends its process this often by itself (crash, memory) counts as failed
MAX_KILLS = 20  # so does one whose process is killed this often by somebody else


def process_executor(jobs: int | None = None, run_timeout: float | None = None) -> Executor:
    """Create an executor that runs specs in processes of this machine, with one thread each.

    The run function must be importable: processes are spawned, because forked ones inherit broken thread pools.

    A run whose process dies is repeated. If the process crashed or exhausted the memory, the run is repeated once,
    after memory exhaustion without other runs beside it, and then counts as failed. If it was killed from outside (a
    preempted machine, an administrator), the run is repeated without such a limit.

    A run starts when its estimated memory fits next to that of the running ones. A run that needs more than the
    machine has fails without a start.

    Args:
        jobs: number of processes; by default one per available core.
        run_timeout: seconds after which a run is ended and counts as failed; ``None`` for no limit.

    Returns:
        The executor.
    """
    jobs = jobs or available_cores()

    def execute(specs: Sequence[RunSpec], run_function: RunFunction) -> Events:
        limit = memory_limit()
        pending, workers = deque(map(_Job, specs)), list[_Worker]()
        try:
            yield from _refuse_too_large(pending, limit)
            while pending or any(worker.job for worker in workers):
                yield from _start(pending, workers, run_function, jobs, limit)
                yield from _collect(pending, workers, limit)
                yield from _end_expired(workers, run_timeout)
        finally:
            for worker in workers:
                worker.stop()

    return execute


def available_cores() -> int:
    """Return the number of cores available to this process; a batch system may grant only some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class _Job:
    spec: RunSpec
    faults: int = 0
    kills: int = 0
    alone: bool = False  # no other run may run at the same time
    memory: float = field(init=False)

    def __post_init__(self) -> None:
        self.memory = estimate_memory(self.spec)


def _refuse_too_large(pending: deque[_Job], limit: int | None) -> Events:
    for job in [job for job in pending if limit is not None and job.memory > limit]:
        pending.remove(job)
        needed, available = f"{job.memory / 1e9:.3g} GB", f"{(limit or 0) / 1e9:.3g} GB"
        yield job.spec
        yield failed_result(job.spec, f"out of memory: the run needs about {needed}, and this machine has {available}")


def _start(
    pending: deque[_Job], workers: list[_Worker], run_function: RunFunction, jobs: int, limit: int | None
) -> Events:
    """Start runs on idle and new workers, as many as cores and memory allow."""
    while len(running := [worker.job for worker in workers if worker.job]) < jobs:
        job = _next_job(pending, running, limit)
        if job is None:
            return
        worker = next((worker for worker in workers if worker.job is None), None)
        if worker is None:
            worker = _Worker(run_function)
            workers.append(worker)
        yield worker.submit(job)


def _next_job(pending: deque[_Job], running: Sequence[_Job], limit: int | None) -> _Job | None:
    """Remove and return the first job that may start now, or ``None``."""
    if any(job.alone for job in running):
        return None
    used = sum(job.memory for job in running)
    for job in pending:
        if not running or (not job.alone and (limit is None or used + job.memory <= limit)):
            pending.remove(job)
            return job
    return None


def _collect(pending: deque[_Job], workers: list[_Worker], limit: int | None) -> Events:
    """Wait for a moment, yield new results, and decide about the runs of processes that died."""
    dead = list[_Worker]()
    for worker in _wait_for_any(workers):
        if (result := worker.collect()) is None:
            workers.remove(worker)
            dead.append(worker)
        else:
            yield result
    for worker in sorted(dead, key=lambda worker: worker.peak, reverse=True):  # the kernel kills the largest first
        death = worker.death(limit)
        if death.memory_killed:  # this kill does not explain the death of another process
            for other in [*workers, *dead]:
                other.memory_kills += 1
        if (result := worker.judge(death)) is None:
            pending.appendleft(worker.last)
        else:
            yield result


def _end_expired(workers: list[_Worker], run_timeout: float | None) -> Events:
    for worker in [worker for worker in workers if worker.has_expired(run_timeout)]:
        workers.remove(worker)
        worker.cancel()
        yield failed_result(worker.last.spec, f"time limit: not finished after {run_timeout:g} s (--run-timeout)")


class _Worker:
    """A process that receives specs and sends results through a pipe, one at a time."""

    def __init__(self, run_function: RunFunction) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        pickled = bytes(ForkingPickler.dumps(run_function))
        self.process: BaseProcess = context.Process(target=serve, args=(child_pipe, pickled), daemon=True)
        self.job: _Job | None = None
        self.is_ready = False  # until its imports are done
        self.peak = self.memory_kills = 0
        with _single_threaded():
            self.process.start()
        child_pipe.close()  # so that reading raises EOFError when the process dies

    def submit(self, job: _Job) -> RunSpec:
        self.job, self.last, self.start = job, job, time.monotonic()
        self.peak, self.memory_kills = 0, out_of_memory_kills()
        with suppress(OSError):  # the process is dead; collect() will notice
            self.pipe.send(job.spec)
        return job.spec

    def has_news(self) -> bool:
        """Whether the readable pipe holds a result or its end; otherwise the worker has just become ready."""
        if not self.is_ready:
            with suppress(EOFError, OSError):
                self.is_ready = self.pipe.recv() == READY
                self.start = time.monotonic()  # the time limit of a run does not include the start of its process
                return False
        return True

    def measure(self) -> None:
        """Update the peak memory of the process while it lives."""
        self.peak = max(self.peak, peak_memory(self.process.pid or 0))

    def collect(self) -> Result | None:
        """Return the result, or ``None`` if the process died."""
        self.job = None
        try:
            result: Result = self.pipe.recv()
        except (EOFError, OSError):
            before = children_peak()
            self.process.join()
            if children_peak() > before:  # it was larger than all before it: this is its exact peak
                self.peak = max(self.peak, children_peak())
            return None
        return result

    def death(self, limit: int | None) -> Death:
        """Describe the end of the dead process on a machine with this memory."""
        exit_code = self.process.exitcode or 0
        memory_killed = exit_code == -signal.SIGKILL and out_of_memory_kills() > self.memory_kills
        return Death(exit_code, self.peak, limit, memory_killed)

    def judge(self, death: Death) -> Result | None:
        """Decide about the job of a dead process: return the failed result, or ``None`` if the run is repeated."""
        job = self.last
        if death.is_own_fault:
            job.faults += 1
            job.alone |= death.is_out_of_memory
        else:
            job.kills += 1
        if job.faults >= MAX_FAULTS or job.kills >= MAX_KILLS:
            return failed_result(job.spec, f"{death}, {job.faults if death.is_own_fault else job.kills} times")
        how = " without others beside it" if job.alone else ""
        log.warning("equipoise: %s: %s; the run is repeated%s", job.spec.label, death, how)
        return None

    def has_expired(self, run_timeout: float | None) -> bool:
        if run_timeout is None or self.job is None or not self.is_ready:
            return False
        return time.monotonic() - self.start > run_timeout

    def cancel(self) -> None:
        """Kill the process at once: a run that hangs may ignore SIGTERM."""
        self.job = None
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(TERMINATION_TIMEOUT)
        self.process.kill()  # the run continues from its checkpoint later
        self.process.join()


def _wait_for_any(workers: Sequence[_Worker]) -> list[_Worker]:
    """Return the busy workers that sent a result or died, after at most a moment."""
    busy = {id(worker.pipe): worker for worker in workers if worker.job}
    ready = wait([worker.pipe for worker in busy.values()], timeout=POLL_INTERVAL)
    for worker in busy.values():
        worker.measure()
    return [worker for worker in (busy[id(pipe)] for pipe in ready) if worker.has_news()]


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Set ``OMP_NUM_THREADS`` for child processes, whose libraries read it at import."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
