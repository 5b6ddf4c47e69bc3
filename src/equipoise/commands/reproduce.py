"""``equipoise reproduce``: the paper's tables and figures, or an experiment of one's own, run by run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.pictures import FigureFile, check_figures, draw_figures
from equipoise.commands.targets import (
    DEFAULT_STORE,
    Dataset,
    Depth,
    Epochs,
    Init,
    Json,
    Seeds,
    StoreFile,
    Targets,
    duration,
    experiments,
)
from equipoise.commands.terminal import working
from equipoise.errors import ChoiceError, SpecError

if TYPE_CHECKING:
    from equipoise.commands.progress import Pace
    from equipoise.experiments.executors import Executor
    from equipoise.experiments.experiment import Experiment
    from equipoise.experiments.result import Result
    from equipoise.experiments.spec import RunSpec
    from equipoise.experiments.store import Store

Option = typer.Option


def reproduce(
    targets: Targets = None,
    *,
    dataset: Dataset = None,
    depth: Depth = None,
    init: Init = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    jobs: Annotated[int | None, Option(min=1, help="Processes; by default one a core.", show_default=False)] = None,
    ray: Annotated[
        str | None,
        Option(metavar="ADDRESS", help="Run on the Ray cluster at this address, or `local`.", show_default=False),
    ] = None,
    store: StoreFile = DEFAULT_STORE,
    retry: Annotated[
        str | None, Option(metavar="failed", help="`failed`: runs that failed or diverged, again.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would run, and run nothing.")] = False,
    list_targets: Annotated[bool, Option("--list", help="Show all targets: runs, and time on this machine.")] = False,
    figure: FigureFile = None,
    as_json: Json = False,
) -> None:
    """Run the paper's experiments, or your own, and show the tables beside the published numbers.

    A run that is in the store is never run again: stop at any time, and the same command goes on.
    """
    if retry not in (None, "failed"):
        raise ChoiceError("--retry", retry, ["failed"])
    if ray is not None and jobs is not None:
        raise SpecError("on a cluster its cores decide how many runs there are at a time", remedy="leave out --jobs")
    with working("loading torch and PyG …"):
        from equipoise.experiments import files

        names = targets or (files.targets() if list_targets else [])
        if not names:
            raise SpecError("nothing is named to be reproduced", remedy=f"one of: {', '.join(files.targets())}")
        chosen = experiments(names, dataset=dataset, depth=depth, init=init, seeds=seeds, epochs=epochs)
        if figure is not None:
            check_figures(chosen, figure)
    if list_targets:
        _list(chosen, jobs, as_json)
    elif dry_run:
        _show(chosen, store, retry == "failed", as_json)
    else:
        _sweep(chosen, store, _executor(jobs, ray), retry=retry == "failed", figure=figure, as_json=as_json)


def _executor(jobs: int | None, ray: str | None) -> Executor:
    if ray is None:
        from equipoise.experiments.executors import processes

        return processes(jobs)
    from equipoise.experiments.ray_executor import ray_tasks

    return ray_tasks(ray)


def _sweep(
    chosen: Sequence[Experiment], path: Path, executor: Executor, *, retry: bool, figure: Path | None, as_json: bool
) -> None:
    from equipoise.experiments.store import Store
    from equipoise.experiments.sweep import sweep
    from equipoise.experiments.watch import watches

    specs, start = _specs(chosen), time.monotonic()
    with Store(path) as store:
        cells = [frozenset(spec.key for spec in cell.specs) for made in chosen for cell in made.cells if cell.specs]
        try:
            with _display(cells, set(store.outcomes())) as watcher:
                sweep(specs, store, executor, watcher, watch=watches(chosen), retry=retry)
        except KeyboardInterrupt:
            done = sum(spec.key in store.outcomes() for spec in specs)
            message = f"stopped: {done} of {len(specs)} runs are in {path}; the same command goes on from here"
            typer.echo(message, err=True)
            raise typer.Exit(130) from None
        results = store.results(spec.key for spec in specs)
        if figure is not None:
            for file in draw_figures(chosen, store, figure, results):
                typer.echo(f"drawn: {file}", err=True)
        reports = [] if as_json else _reports(chosen, list(results.values()), store)
    failures = [result for result in results.values() if result.outcome == "failed"]
    if as_json:
        typer.echo(json.dumps(_summary(list(results.values()), path), indent=2))
    else:
        typer.echo("\n".join(reports))
        typer.echo(f"{len(results)} runs in {path}, {duration(time.monotonic() - start)}", err=True)
    if failures:
        told = "\n".join(f"  {result.spec.label}: {result.reason}" for result in failures)
        typer.echo(f"{len(failures)} runs failed; --retry failed does them again:\n{told}", err=True)
        raise typer.Exit(1)


@contextmanager
def _display(cells: Sequence[frozenset[str]], done: set[str]) -> Iterator[Pace]:
    from rich.console import Console

    from equipoise.commands.progress import Bar, Lines

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(cells, done)
        return
    with Bar(cells, done, console) as bar:
        yield bar


def _specs(chosen: Sequence[Experiment]) -> list[RunSpec]:
    return list(dict.fromkeys(spec for experiment in chosen for spec in experiment.specs))


def _list(chosen: Sequence[Experiment], jobs: int | None, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from equipoise.experiments.calibration import calibrate, seconds
    from equipoise.experiments.executors import cores

    with working("timing a few epochs on this machine …"):
        factors = calibrate(dict.fromkeys(spec.kind for spec in _specs(chosen)))
    jobs = jobs or cores()
    rows = [
        {
            "target": experiment.name,
            "title": experiment.title,
            "runs": len(experiment.specs),
            "seconds": sum(seconds(spec, factors) for spec in experiment.specs) / jobs,
        }
        for experiment in chosen
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("target", "runs", f"at most, on {jobs} cores", "what it is"):
        table.add_column(column, justify="left" if column in ("target", "what it is") else "right")
    for row in rows:
        time_left = duration(float(str(row["seconds"]))) if row["runs"] else "no runs"
        table.add_row(str(row["target"]), str(row["runs"]), time_left, str(row["title"]))
    Console().print(table)
    typer.echo("\nAn epoch was timed on this machine; runs that converge before their last epoch are shorter.")


def _show(chosen: Sequence[Experiment], path: Path, retry: bool, as_json: bool) -> None:
    from equipoise.experiments.store import Store
    from equipoise.experiments.sweep import missing
    from equipoise.experiments.watch import unseen, watches

    outcomes, unrecorded = {}, set[str]()
    if path.exists():
        with Store(path, create=False) as store:
            outcomes, unrecorded = store.outcomes(), unseen(watches(chosen), store.recorded())
    specs = _specs(chosen)
    todo = missing(specs, outcomes, retry, unrecorded)
    if as_json:
        typer.echo(json.dumps([{"key": spec.key, **spec.to_dict()} for spec in todo], indent=2))
        return
    for spec in todo:
        network = f"{spec.kind}, width {spec.width} × {spec.heads}"
        typer.echo(f"{spec.key}  {spec.label:<36} {network}, {spec.optimizer} {spec.lr:g}, {spec.epochs} epochs")
    typer.echo(f"{len(todo)} of {len(specs)} runs would be done, in this order; the others are in {path}")


def _summary(results: Sequence[Result], path: Path) -> dict[str, object]:
    plain = [
        {name: getattr(result, name) for name in ("key", "outcome", "reason", "test_accuracy", "best_epoch", "epochs")}
        for result in results
    ]
    return {"store": str(path), "runs": plain}


def _reports(chosen: Sequence[Experiment], results: Sequence[Result], store: Store) -> list[str]:
    from equipoise.report.datasets import dataset_report
    from equipoise.report.formats import as_markdown
    from equipoise.report.frames import frames_of
    from equipoise.report.tables import report

    frames = frames_of(store)
    return [
        as_markdown(dataset_report(made) if made.kind == "data" else report(made, results, frames)) for made in chosen
    ]
