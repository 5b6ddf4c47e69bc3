"""Executors: run specs in processes of this machine, or on a cluster (:mod:`~equipoise.experiments.ray_executor`).

An executor is a function of specs and a run function. It yields each spec when its run starts and each result when its
run ends: exactly one result per spec, even if a process or node is lost.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from equipoise.experiments.result import Result, failed_result
from equipoise.experiments.spec import RunSpec

RunFunction = Callable[[RunSpec], Result]
Events = Generator[RunSpec | Result, None, None]  # a spec when its run starts, a result when it ends
Executor = Callable[[Sequence[RunSpec], RunFunction], Events]

TERMINATION_TIMEOUT = 5.0  # seconds between SIGTERM and SIGKILL
MAX_ATTEMPTS = 2  # a run whose process dies this often counts as failed


def process_executor(jobs: int | None = None) -> Executor:
    """Create an executor that runs specs in processes of this machine, with one thread each.

    The run function must be importable: processes are spawned, because forked ones inherit broken thread pools.

    Args:
        jobs: number of processes; by default one per available core.

    Returns:
        The executor.
    """
    jobs = jobs or available_cores()

    def execute(specs: Sequence[RunSpec], run_function: RunFunction) -> Events:
        pending = deque(_Job(spec) for spec in specs)
        workers: list[_Worker] = []
        try:
            while pending or any(worker.job for worker in workers):
                while len(workers) < jobs and len(workers) < len(pending) + sum(bool(w.job) for w in workers):
                    workers.append(_Worker(run_function))
                for worker in workers:
                    if worker.job is None and pending:
                        yield worker.submit(pending.popleft())
                for worker in _wait_for_any(workers):
                    job, result = worker.collect()
                    if result is None:  # the process died
                        workers.remove(worker)
                        result = _failure(job, worker)
                    if result is None:
                        pending.appendleft(job)
                    else:
                        yield result
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
    attempts: int = 0


class _Worker:
    """A process that receives specs and sends results through a pipe, one at a time."""

    def __init__(self, run_function: RunFunction) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(child_pipe, run_function), daemon=True)
        self.job: _Job | None = None
        with _single_threaded():
            self.process.start()
        child_pipe.close()  # so that reading raises EOFError when the process dies

    def submit(self, job: _Job) -> RunSpec:
        job.attempts += 1
        self.job = job
        with suppress(OSError):  # the process is dead; collect() will notice
            self.pipe.send(job.spec)
        return job.spec

    def collect(self) -> tuple[_Job, Result | None]:
        """Return the job and its result, or ``None`` if the process died."""
        job, self.job = self.job, None
        assert job is not None
        try:
            return job, self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return job, None

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(TERMINATION_TIMEOUT)
        self.process.kill()  # the run continues from its checkpoint later
        self.process.join()


def _wait_for_any(workers: Sequence[_Worker]) -> list[_Worker]:
    """Wait until a busy worker sends its result or dies."""
    busy = {id(worker.pipe): worker for worker in workers if worker.job}
    return [busy[id(pipe)] for pipe in wait([worker.pipe for worker in busy.values()])]


def _failure(job: _Job, worker: _Worker) -> Result | None:
    """Return the failed result of a job whose process died, or ``None`` if it has attempts left."""
    if job.attempts < MAX_ATTEMPTS:
        return None
    code = worker.process.exitcode or 0
    cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    hint = ": perhaps out of memory" if code == -signal.SIGKILL else ""
    return failed_result(job.spec, f"the process {cause}, {MAX_ATTEMPTS} times{hint}")


def _serve(pipe: Connection, run_function: RunFunction) -> None:
    """Main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops its workers
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    while True:
        try:
            spec = pipe.recv()
        except EOFError:
            return
        pipe.send(run_function(spec))


def _exit_with_parent() -> None:
    """Exit when the parent dies: a killed parent cannot stop its workers, and the next sweep repeats their runs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


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
