"""A sweep: the runs of an experiment that the store lacks, longest first, one sweep per store at a time.

Resuming a sweep means starting it again: finished runs are in the store, interrupted ones continue from a checkpoint.
The operating system releases the lock of a store when the process that holds it dies. Importing this module does not
import torch, so that ``equipoise status`` and progress displays load fast.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from equipoise.data.catalog import dataset_info
from equipoise.data.files import read_files
from equipoise.experiments.callback import SweepCallback
from equipoise.experiments.cost import relative_cost
from equipoise.experiments.recording_plan import RecordingPlan, missing_recordings
from equipoise.experiments.result import UNSUCCESSFUL, Result
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.store import Store
from equipoise.experiments.store_file import is_writable

if TYPE_CHECKING:
    from equipoise.experiments.executors import Executor

CHECKPOINT_INTERVAL = 60.0  # seconds between two checkpoints of a run


@contextmanager
def sweep_lock(store: Store, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a store, waiting for another sweep to finish if necessary.

    Args:
        store: the store to lock.
        on_wait: called with a message before waiting.

    Yields:
        Nothing; the lock is held inside the ``with`` block.
    """
    lock = store_lock(store.path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        on_wait(f"waiting: {store.lock_owner() or 'another process'} is running a sweep on {store.path}")
        lock.acquire()
    try:
        store.set_lock_owner(os.getpid(), socket.gethostname())
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Check whether a sweep is running on the store at this path; not known, hence false, if it is read-only."""
    if not path.exists() or not is_writable(path):
        return False
    lock = store_lock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False


def store_lock(path: Path) -> FileLock:
    """Return the lock of the store at this path, not yet acquired."""
    return FileLock(path.with_name(f"{path.name}.lock"))


def sweep(
    specs: Iterable[RunSpec],
    store: Store,
    executor: Executor,
    callback: SweepCallback | None = None,
    *,
    recording_plans: Mapping[str, RecordingPlan] | None = None,
    retry: bool = False,
    checkpoint_interval: float = CHECKPOINT_INTERVAL,
) -> list[Result]:
    """Execute all runs that the store lacks, and put their results into it.

    Args:
        specs: the runs.
        store: the store, locked until the sweep ends.
        executor: executes the runs.
        callback: is notified of progress.
        recording_plans: recordings to make, by run key. A run is repeated if the store lacks its recording.
        retry: repeat runs that failed or diverged.
        checkpoint_interval: seconds between two checkpoints of a run.

    Returns:
        The results of the executed runs.

    Raises:
        DataError: If a data set is neither available nor can be downloaded.
        StoreError: If the store cannot be written.
    """
    callback = callback or SweepCallback()
    plans = recording_plans or {}
    with sweep_lock(store, callback.on_wait):
        outcomes = store.outcomes()
        unrecorded = missing_recordings(plans, store.recording_plans())
        todo = missing_runs(dict.fromkeys(specs), outcomes, retry, unrecorded)
        _fetch_data(todo)
        callback.on_sweep_start(todo)
        if not todo:
            return []
        from equipoise.experiments.run import compile_kernels  # noqa: PLC0415 (imports torch)

        compile_kernels(todo)
        folder = checkpoint_folder(store.path)
        folder.mkdir(exist_ok=True)
        _remove_stale_checkpoints(folder, outcomes)
        results = []
        with closing(executor(todo, CheckpointedRun(folder.resolve(), checkpoint_interval, plans))) as events:
            for event in events:
                if isinstance(event, RunSpec):
                    store.mark_running(event.key)
                    callback.on_run_start(event)
                else:
                    store.put(event)
                    _checkpoint_file(folder, event.key).unlink(missing_ok=True)
                    results.append(event)
                    callback.on_run_end(event)
        if not any(folder.iterdir()):
            folder.rmdir()
        return results


def missing_runs(
    specs: Iterable[RunSpec], outcomes: Mapping[str, str], retry: bool = False, unrecorded: Container[str] = ()
) -> list[RunSpec]:
    """Select the runs to execute, most expensive first, so that no long run remains at the end of a sweep.

    Args:
        specs: candidates.
        outcomes: outcomes in the store by run key.
        retry: include runs that failed or diverged.
        unrecorded: keys of runs whose recording is missing; included unless the run failed.

    Returns:
        The selected runs.
    """

    def is_missing(key: str) -> bool:
        outcome = outcomes.get(key)
        return outcome is None or (retry and outcome in UNSUCCESSFUL) or (key in unrecorded and outcome != "failed")

    return sorted((spec for spec in specs if is_missing(spec.key)), key=relative_cost, reverse=True)


def checkpoint_folder(store: Path) -> Path:
    """Return the folder for the checkpoints of a sweep, next to the store."""
    return store.with_name(f"{store.name}.checkpoints")


@dataclass(frozen=True)
class CheckpointedRun:
    """A picklable function that executes a run with its checkpoint and recording plan.

    Runs have no checkpoints where the folder does not exist, such as on a cluster without a shared file system.
    """

    folder: Path
    interval: float = CHECKPOINT_INTERVAL
    recording_plans: Mapping[str, RecordingPlan] = field(default_factory=dict)

    def __call__(self, spec: RunSpec) -> Result:
        from equipoise.experiments.checkpoint import Checkpoint  # noqa: PLC0415 (imports torch)
        from equipoise.experiments.run import run  # noqa: PLC0415

        plan = self.recording_plans.get(spec.key)
        if not self.folder.is_dir():
            return run(spec, recording_plan=plan)
        return run(spec, Checkpoint(_checkpoint_file(self.folder, spec.key), spec.key, self.interval), plan)


def _checkpoint_file(folder: Path, key: str) -> Path:
    return folder / f"{key}.pt"


def _remove_stale_checkpoints(folder: Path, completed: Container[str]) -> None:
    """Remove what a killed sweep left behind: partial files and checkpoints of completed runs."""
    for file in folder.iterdir():
        if file.suffix == ".tmp" or (file.suffix == ".pt" and file.stem in completed):
            file.unlink()


def _fetch_data(specs: Iterable[RunSpec]) -> None:
    """Download missing data sets once, and fail before the first run if that is impossible."""
    for dataset in dict.fromkeys(spec.dataset for spec in specs):
        read_files(dataset_info(dataset))
