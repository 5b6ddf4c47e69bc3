"""Many runs: those of an experiment that the store does not have yet, long ones first.

To go on with a sweep is to start it again: what is done is found in the store, what was under way in its checkpoints.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from equipoise.data.catalog import catalog_entry
from equipoise.data.files import read_files
from equipoise.experiments.checkpoint import EVERY, Checkpoint
from equipoise.experiments.cost import work
from equipoise.experiments.driver import driving
from equipoise.experiments.executors import Executor
from equipoise.experiments.result import UNSUCCESSFUL, Result
from equipoise.experiments.run import compile_kernels, run
from equipoise.experiments.spec import RunSpec
from equipoise.experiments.store import Store
from equipoise.experiments.watch import Watch, unseen


class Watcher:
    """What a sweep tells while it runs; a display overrides what it shows."""

    def waits(self, message: str) -> None:
        """Another sweep is running on the store."""

    def begins(self, todo: Sequence[RunSpec]) -> None:
        """These runs are to be done."""

    def starts(self, spec: RunSpec) -> None:
        """A run has started, or started again because its process or machine was lost."""

    def ends(self, result: Result) -> None:
        """A run is over and in the store."""


def sweep(
    specs: Iterable[RunSpec],
    store: Store,
    executor: Executor,
    watcher: Watcher | None = None,
    *,
    watch: Mapping[str, Watch] | None = None,
    retry: bool = False,
    checkpoint_every: float = EVERY,
) -> list[Result]:
    """Do all runs that the store does not have, and return the results of these.

    Args:
        specs: the runs.
        store: where results are, and go to; nobody else drives a sweep on it meanwhile.
        executor: who does the runs.
        watcher: is told what happens.
        watch: what to record of runs, by key; a run whose recording the store does not have is done again.
        retry: do runs again that failed or diverged.
        checkpoint_every: seconds from one checkpoint of a run to its next.
    """
    watcher = watcher or Watcher()
    wanted = list(dict.fromkeys(specs))
    with driving(store, watcher.waits):
        outcomes = store.outcomes()
        todo = missing(wanted, outcomes, retry, unseen(watch or {}, store.recorded()))
        _check_data(todo)
        watcher.begins(todo)
        if not todo:
            return []
        compile_kernels(todo)
        folder = checkpoint_folder(store.path)
        folder.mkdir(exist_ok=True)
        _tidy(folder, outcomes)
        results = []
        with closing(executor(todo, Runner(folder.resolve(), checkpoint_every, watch or {}))) as happenings:
            for news in happenings:
                if isinstance(news, RunSpec):
                    store.note_running(news.key)
                    watcher.starts(news)
                else:
                    store.put(news)
                    _checkpoint_file(folder, news.key).unlink(missing_ok=True)
                    results.append(news)
                    watcher.ends(news)
        if not any(folder.iterdir()):
            folder.rmdir()
        return results


def missing(
    specs: Iterable[RunSpec], outcomes: dict[str, str], retry: bool = False, unrecorded: Container[str] = ()
) -> list[RunSpec]:
    """The runs that have no outcome yet, or one to be tried again; long ones first, so that none is left over last.

    Among the first are those whose recording is wanted and not there, unless they failed.
    """

    def to_do(key: str) -> bool:
        outcome = outcomes.get(key)
        return outcome is None or (retry and outcome in UNSUCCESSFUL) or (key in unrecorded and outcome != "failed")

    left = [spec for spec in specs if to_do(spec.key)]
    return sorted(left, key=work, reverse=True)


def checkpoint_folder(store: Path) -> Path:
    """Where the runs of a sweep keep their checkpoints: beside the store."""
    return store.with_name(f"{store.name}.checkpoints")


@dataclass(frozen=True)
class Runner:
    """A run with its checkpoint, for another process or machine.

    Where the folder is not there (a cluster without a shared file system) runs do without.
    """

    folder: Path
    every: float = EVERY
    watch: Mapping[str, Watch] = field(default_factory=dict)

    def __call__(self, spec: RunSpec) -> Result:
        watch = self.watch.get(spec.key)
        if not self.folder.is_dir():
            return run(spec, watch=watch)
        return run(spec, Checkpoint(_checkpoint_file(self.folder, spec.key), spec.key, self.every), watch)


def _checkpoint_file(folder: Path, key: str) -> Path:
    return folder / f"{key}.pt"


def _tidy(folder: Path, done: Container[str]) -> None:
    """Remove what a driver that was killed left behind: half-written files, checkpoints of runs that are done."""
    for file in folder.iterdir():
        if file.suffix == ".tmp" or (file.suffix == ".pt" and file.stem in done):
            file.unlink()


def _check_data(specs: Iterable[RunSpec]) -> None:
    """What is missing is said, or downloaded, once and before any run."""
    for dataset in dict.fromkeys(spec.dataset for spec in specs):
        read_files(catalog_entry(dataset))
