"""Who does the runs: processes on this machine, or tasks on a cluster (:mod:`~equipoise.experiments.ray_executor`).

An executor is a function. Specs go in; out come, as it happens, a spec when its run starts and a result when it is
over: one result for each spec, whatever becomes of the process or machine that it ran on.
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

from equipoise.experiments.result import Result, failed
from equipoise.experiments.spec import RunSpec

Work = Callable[[RunSpec], Result]
News = Generator[RunSpec | Result, None, None]
Executor = Callable[[Sequence[RunSpec], Work], News]

SOON = 5.0  # seconds in which a process ends that is asked to
TRIES = 2  # a process that dies takes its run with it twice before that is the run's result


def processes(jobs: int | None = None) -> Executor:
    """Runs in processes of this machine, one thread each; by default one a core.

    The functions that are given as work have to be importable: processes are started anew (``spawn``), since forked
    ones inherit thread pools that no longer work.
    """
    jobs = jobs or cores()

    def execute(specs: Sequence[RunSpec], work: Work) -> News:
        waiting = deque(_Job(spec) for spec in specs)
        workers: list[_Worker] = []
        try:
            while waiting or any(worker.job for worker in workers):
                while len(workers) < jobs and len(workers) < len(waiting) + sum(bool(w.job) for w in workers):
                    workers.append(_Worker(work))
                for worker in workers:
                    if worker.job is None and waiting:
                        yield worker.start(waiting.popleft())
                for worker in _ready(workers):
                    job, result = worker.take()
                    if result is None:  # it died
                        workers.remove(worker)
                        result = _lost(job, worker)
                    if result is None:
                        waiting.appendleft(job)
                    else:
                        yield result
        finally:
            for worker in workers:
                worker.end()

    return execute


def cores() -> int:
    """How many of this machine's cores are ours: a batch system may have given us a few of them only."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class _Job:
    spec: RunSpec
    tries: int = 0


class _Worker:
    """A process that is handed specs one by one through a pipe."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self.job: _Job | None = None
        with _one_thread():
            self.process.start()
        theirs.close()  # so that the pipe ends when the process does

    def start(self, job: _Job) -> RunSpec:
        job.tries += 1
        self.job = job
        with suppress(OSError):  # it is dead, as taking its result will show
            self.pipe.send(job.spec)
        return job.spec

    def take(self) -> tuple[_Job, Result | None]:
        """What it did; no result if it died."""
        job, self.job = self.job, None
        assert job is not None
        try:
            return job, self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return job, None

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(SOON)
        self.process.kill()  # whatever keeps it: what it did is in its checkpoint
        self.process.join()


def _ready(workers: Sequence[_Worker]) -> list[_Worker]:
    """Wait for a busy worker to answer or die."""
    busy = {id(worker.pipe): worker for worker in workers if worker.job}
    return [busy[id(pipe)] for pipe in wait([worker.pipe for worker in busy.values()])]


def _lost(job: _Job, worker: _Worker) -> Result | None:
    if job.tries < TRIES:
        return None
    code = worker.process.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    reason = f"its process {how}, {TRIES} times"
    return failed(job.spec, reason + (": perhaps there is not enough memory" if code == -signal.SIGKILL else ""))


def _serve(pipe: Connection, work: Work) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends its workers
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    while True:
        try:
            spec = pipe.recv()
        except EOFError:
            return
        pipe.send(work(spec))


def _leave_with_parent() -> None:
    """A driver that is killed cannot end its workers, and a new one will do their runs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Libraries read this when they are loaded, and a new process inherits it."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
