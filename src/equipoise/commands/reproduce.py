"""``equipoise reproduce``: run the experiments of the paper, or your own, and tabulate the results."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.figures import FigureFile, check_figures, draw_figures
from equipoise.commands.options import (
    DEFAULT_STORE,
    Dataset,
    Depth,
    Epochs,
    ExperimentNames,
    Init,
    Json,
    Seeds,
    StoreFile,
    Variant,
    format_duration,
    refuse_options,
    select_experiments,
)
from equipoise.commands.terminal import SweepDisplay, SweepLog, SweepProgress, print_tables, spinner
from equipoise.errors import ChoiceError, SpecError
from equipoise.inert_text import printable

if TYPE_CHECKING:
    from equipoise.experiments.executors import Executor
    from equipoise.experiments.experiment import Experiment
    from equipoise.experiments.result import Result
    from equipoise.experiments.spec import RunSpec
    from equipoise.experiments.store import Store

Option = typer.Option


def reproduce(
    context: typer.Context,
    names: ExperimentNames = None,
    *,
    dataset: Dataset = None,
    depth: Depth = None,
    init: Init = None,
    variant: Variant = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    jobs: Annotated[
        int | None, Option(min=1, help="Number of processes; by default one per core.", show_default=False)
    ] = None,
    ray: Annotated[
        str | None,
        Option(metavar="ADDRESS", help="Run on the Ray cluster at this address, or `local`.", show_default=False),
    ] = None,
    run_timeout: Annotated[
        float | None,
        Option(min=1, metavar="SECONDS", help="End a run after this time; it counts as failed.", show_default=False),
    ] = None,
    store: StoreFile = DEFAULT_STORE,
    retry: Annotated[
        str | None,
        Option(metavar="failed", help="`failed` repeats runs that failed or diverged.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="List the runs to do without running them.")] = False,
    list_only: Annotated[
        bool, Option("--list", help="List all experiments: number of runs and estimated time on this machine.")
    ] = False,
    figure: FigureFile = None,
    as_json: Json = False,
) -> None:
    """Run the experiments of the paper, or your own, and compare the results with the published numbers.

    Runs that are in the store are not repeated: you can stop at any time and
    resume with the same command.
    """
    if list_only:
        void = ("dry_run", "store", "retry", "ray", "run_timeout", "figure")
        refuse_options(context, void, "has no effect with --list: leave it out")
    if retry not in (None, "failed"):
        raise ChoiceError("--retry", retry, ["failed"])
    if ray is not None and jobs is not None:
        raise SpecError("with --ray, the cluster determines the number of parallel runs", remedy="leave out --jobs")
    with spinner("loading the experiments …"):
        from equipoise.experiments.parser import experiment_names, further_experiment_names

        known = experiment_names() + further_experiment_names()
        selected = names or (known if list_only else [])
        if not selected:
            raise SpecError("no experiment is named", remedy=f"name one of: {', '.join(known)}")
        experiments = select_experiments(
            selected, dataset=dataset, depth=depth, init=init, variant=variant, seeds=seeds, epochs=epochs
        )
        if figure is not None:
            check_figures(experiments, figure)
    if list_only:
        _list_experiments(experiments, jobs, as_json)
    elif dry_run:
        _list_missing_runs(experiments, store, retry == "failed", as_json)
    else:
        executor = _executor(jobs, ray, run_timeout)
        _run(experiments, store, executor, retry=retry == "failed", figure=figure, as_json=as_json)


def _executor(jobs: int | None, ray: str | None, run_timeout: float | None) -> Executor:
    with spinner("loading torch and PyG …"):
        if ray is None:
            from equipoise.experiments.executors import process_executor

            return process_executor(jobs, run_timeout)
        from equipoise.experiments.ray_executor import ray_executor

        return ray_executor(ray, run_timeout=run_timeout)


def _run(
    experiments: Sequence[Experiment],
    path: Path,
    executor: Executor,
    *,
    retry: bool,
    figure: Path | None,
    as_json: bool,
) -> None:
    from equipoise.experiments.recording_plan import recording_plans
    from equipoise.experiments.store import Store
    from equipoise.experiments.sweep import sweep

    specs, start = _unique_specs(experiments), time.monotonic()
    with Store(path) as store:
        cells = [frozenset(spec.key for spec in cell.specs) for e in experiments for cell in e.cells if cell.specs]
        try:
            with _stop_on_sigterm(), _progress_display(cells, set(store.outcomes())) as callback:
                sweep(specs, store, executor, callback, recording_plans=recording_plans(experiments), retry=retry)
        except KeyboardInterrupt:
            done = sum(spec.key in store.outcomes() for spec in specs)
            message = f"stopped: {done} of {len(specs)} runs are in {path}; run the same command again to resume"
            typer.echo(message, err=True)
            raise typer.Exit(130) from None
        results = store.results(spec.key for spec in specs)
        if figure is not None:
            for file in draw_figures(experiments, store, figure, results):
                typer.echo(f"figure: {file}", err=True)
        tables = [] if as_json else _tables(experiments, list(results.values()), store)
    if as_json:
        typer.echo(json.dumps(_to_dict(list(results.values()), path), indent=2))
    else:
        typer.echo("\n".join(tables))
        typer.echo(f"{len(results)} runs in {path}, {format_duration(time.monotonic() - start)}", err=True)
    failures = [result for result in results.values() if result.outcome == "failed"]
    if failures:
        reasons = "\n".join(f"  {result.spec.label}: {printable(result.reason)}" for result in failures)
        typer.echo(f"{len(failures)} runs failed; --retry failed repeats them:\n{reasons}", err=True)
        if memory := sum(result.reason.startswith("out of memory") for result in failures):
            hint = "also without other runs beside them; on a machine with more, add  --retry failed"
            typer.echo(f"{memory} of them need more memory than there is, {hint}", err=True)
        if late := sum(result.reason.startswith("time limit") for result in failures):
            typer.echo(f"{late} of them reached --run-timeout; add  --retry failed  and a longer one", err=True)
        raise typer.Exit(1)


@contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Let SIGTERM, which batch systems send before they end a job, stop the sweep as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress_display(cells: Sequence[frozenset[str]], done: set[str]) -> Iterator[SweepProgress]:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield SweepLog(cells, done)
        return
    with SweepDisplay(cells, done, console) as display:
        yield display


def _unique_specs(experiments: Sequence[Experiment]) -> list[RunSpec]:
    return list(dict.fromkeys(spec for experiment in experiments for spec in experiment.specs))


def _list_experiments(experiments: Sequence[Experiment], jobs: int | None, as_json: bool) -> None:
    from rich.table import Table

    with spinner("timing a few epochs on this machine …"):
        from equipoise.experiments.cost import calibrate, estimate_seconds
        from equipoise.experiments.executors import available_cores

        factors = calibrate(dict.fromkeys(spec.kind for spec in _unique_specs(experiments)))
    jobs = jobs or available_cores()
    rows = [
        {
            "experiment": experiment.name,
            "title": experiment.title,
            "runs": len(experiment.specs),
            "seconds": sum(estimate_seconds(spec, factors) for spec in experiment.specs) / jobs,
        }
        for experiment in experiments
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("experiment", "runs", f"at most, on {jobs} cores", "title"):
        justify = "left" if column in ("experiment", "title") else "right"
        table.add_column(column, justify=justify, no_wrap=column != "title")  # type: ignore[arg-type]
    for row in rows:
        estimate = format_duration(float(str(row["seconds"]))) if row["runs"] else "no runs"
        table.add_row(str(row["experiment"]), str(row["runs"]), estimate, str(row["title"]))
    print_tables(table)
    typer.echo("\nEstimated from epochs timed on this machine; runs that converge early take less time.")


def _list_missing_runs(experiments: Sequence[Experiment], path: Path, retry: bool, as_json: bool) -> None:
    with spinner("reading the store …"):
        from equipoise.experiments.cost import rough_seconds
        from equipoise.experiments.recording_plan import missing_recordings, recording_plans
        from equipoise.experiments.store import Store
        from equipoise.experiments.sweep import missing_runs

        outcomes, unrecorded = {}, set[str]()
        if path.exists():
            with Store(path, read_only=True) as store:
                outcomes = store.outcomes()
                unrecorded = missing_recordings(recording_plans(experiments), store.recording_plans())
        specs = _unique_specs(experiments)
        todo = missing_runs(specs, outcomes, retry, unrecorded)
    if as_json:
        typer.echo(json.dumps([{"key": spec.key, **spec.to_dict()} for spec in todo], indent=2))
        return
    for spec in todo:
        network = f"{spec.kind}, width {spec.width} × {spec.heads}"
        typer.echo(f"{spec.key}  {spec.label:<36} {network}, {spec.optimizer} {spec.lr:g}, {spec.epochs} epochs")
    typer.echo(f"{len(todo)} of {len(specs)} runs to do, in this order; the others are in {path}")
    if todo:
        duration = format_duration(sum(map(rough_seconds, todo)))
        typer.echo(f"roughly {duration} on one core; --list times this machine")


def _to_dict(results: Sequence[Result], path: Path) -> dict[str, object]:
    fields = ("key", "outcome", "reason", "test_accuracy", "best_epoch", "epochs")
    runs = [{name: getattr(result, name) for name in fields} for result in results]
    return {"store": str(path), "runs": runs}


def _tables(experiments: Sequence[Experiment], results: Sequence[Result], store: Store) -> list[str]:
    from equipoise.report.datasets import dataset_report
    from equipoise.report.formats import as_markdown
    from equipoise.report.frames import frame_loader
    from equipoise.report.tables import table_report

    load_frame = frame_loader(store)
    return [
        as_markdown(
            dataset_report(experiment) if experiment.kind == "data" else table_report(experiment, results, load_frame)
        )
        for experiment in experiments
    ]
