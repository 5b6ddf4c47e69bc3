"""``equipoise store``: export and import results; verify and repair the file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.options import DEFAULT_STORE, StoreFile
from equipoise.commands.outputs import check_output
from equipoise.commands.terminal import spinner
from equipoise.errors import StoreError

if TYPE_CHECKING:
    from equipoise.experiments.store_repair import Salvage

app = typer.Typer(
    no_args_is_help=True, help="Export the results in a store to CSV, merge results into it, verify or repair it."
)


@app.command(epilog="Example:  equipoise store export results.csv")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="CSV file to write.", show_default=False)],
    store: StoreFile = DEFAULT_STORE,
) -> None:
    """Write all results as CSV, one row per run: settings, outcome, accuracies, versions.

    Numbers are written with full precision. Training curves and recordings
    are not exported.
    """
    if file.suffix.lower() != ".csv":
        raise StoreError(
            f"results are exported as .csv, not as {file.suffix or 'a file without a suffix'}",
            where=str(file),
            remedy=f"write {file.with_suffix('.csv')}",
        )
    check_output(file, "export")
    with spinner("reading the store …"):
        from equipoise.experiments.results_csv import write_csv
        from equipoise.experiments.store import Store

        with Store(store, read_only=True) as source:
            count = write_csv(source.results().values(), file)
    typer.echo(f"{count} runs in {file}")


@app.command("import", epilog="Example:  equipoise store import cluster.sqlite")
def import_results(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A CSV file (.csv) or another store.", show_default=False)
    ],
    store: StoreFile = DEFAULT_STORE,
) -> None:
    """Merge the results of a CSV file or of another store into this store.

    Existing results are kept, except that a failed run is replaced by a result
    of the same run; runs with other numbers in the file are reported.
    Importing a file twice changes nothing.
    """
    with spinner("reading the results …"):
        from equipoise.experiments.results_csv import read_csv
        from equipoise.experiments.store import Store

        if not file.exists():
            raise StoreError("there is no such file", where=str(file), remedy="name a .csv file or a store")
        if file.suffix.lower() == ".csv":
            results = list(read_csv(file))
        else:
            with Store(file, read_only=True) as source:
                results = list(source.results(curves=True, recordings=True).values())
        with Store(store) as destination:  # which does not come into being if the file is refused
            counts = destination.merge(results)
    summary = f"{counts.added} runs added, {counts.known} already there"
    typer.echo(summary + (f", {counts.replaced} failures replaced" if counts.replaced else ""))
    if counts.differing:
        message = (
            f"warning: {counts.differing} of the runs already there have other numbers in {file}; {store} keeps its own"
        )
        typer.secho(message, fg=typer.colors.YELLOW, err=True)


@app.command(epilog="Example:  equipoise store check --store sweep.sqlite")
def check(store: StoreFile = DEFAULT_STORE) -> None:
    """Verify every row of a store: checksums, settings, curves and recordings.

    Changes nothing. Exits with 1 if the store is damaged.
    """
    with spinner("verifying the store …"):
        from equipoise.experiments.store_repair import check_store

        salvage = check_store(store)
    typer.echo(_describe(store, salvage))
    if salvage.problems:
        _list_problems(salvage)
        typer.echo(f"damaged; to keep what is readable:  {_command('repair', store)}", err=True)
        raise typer.Exit(1)
    typer.echo("intact")


@app.command(epilog="Example:  equipoise store repair --store sweep.sqlite")
def repair(store: StoreFile = DEFAULT_STORE) -> None:
    """Salvage the readable runs of a damaged store.

    The damaged file is kept as FILE.damaged. The next sweep repeats the runs
    that were lost. An intact store stays as it is.
    """
    with spinner("reading the store …"):
        from equipoise.experiments.store_repair import repair_store

        salvage, damaged = repair_store(store)
    if damaged is None:
        typer.echo(f"{_describe(store, salvage)}\nintact, nothing to repair")
        return
    _list_problems(salvage)
    typer.echo(_describe(store, salvage))
    lost = ["runs were lost, but the file does not tell how many"] if salvage.lost is None else []
    lost += [f"{salvage.lost} runs were lost"] if salvage.lost else []
    lost += [f"{salvage.incomplete} runs lost a curve or recording"] if salvage.incomplete else []
    typer.echo(f"{', '.join(lost) or 'no run was lost'}; the damaged file is now {damaged}")


def _describe(path: Path, salvage: Salvage) -> str:
    results = salvage.results.values()
    curves, recordings = (
        sum(len(result.curves) for result in results),
        sum(bool(result.recording) for result in results),
    )
    return f"{path}: {len(results)} runs, {curves} curves and {recordings} recordings are readable"


def _list_problems(salvage: Salvage) -> None:
    shown = salvage.problems[:20]
    typer.echo("\n".join(f"  {problem}" for problem in shown), err=True)
    if len(salvage.problems) > len(shown):
        typer.echo(f"  … and {len(salvage.problems) - len(shown)} more", err=True)


def _command(name: str, store: Path) -> str:
    return shlex.join(["equipoise", "store", name, *([] if store == DEFAULT_STORE else ["--store", str(store)])])
