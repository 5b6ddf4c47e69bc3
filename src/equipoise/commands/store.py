"""``equipoise store``: export and import results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.commands.options import DEFAULT_STORE, StoreFile
from equipoise.commands.terminal import spinner
from equipoise.errors import StoreError

app = typer.Typer(no_args_is_help=True, help="Export the results in a store to CSV, or merge results into it.")


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
        with Store(store) as destination:
            if file.suffix.lower() == ".csv":
                counts = destination.merge(read_csv(file))
            else:
                with Store(file, read_only=True) as source:
                    counts = destination.merge(source.results(curves=True, recordings=True).values())
    summary = f"{counts.added} runs added, {counts.known} already there"
    typer.echo(summary + (f", {counts.replaced} failures replaced" if counts.replaced else ""))
    if counts.differing:
        message = (
            f"warning: {counts.differing} of the runs already there have other numbers in {file}; {store} keeps its own"
        )
        typer.secho(message, fg=typer.colors.YELLOW, err=True)
