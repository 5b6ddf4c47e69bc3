"""``equipoise store``: results out of a store, and into one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.commands.targets import DEFAULT_STORE, StoreFile
from equipoise.commands.terminal import working
from equipoise.errors import StoreError

app = typer.Typer(no_args_is_help=True, help="The store of results: write it to a table, merge others into it.")


@app.command(epilog="Example:  equipoise store export results.csv")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="The table to write.", show_default=False)],
    store: StoreFile = DEFAULT_STORE,
) -> None:
    """Write all results as CSV, one row a run: settings, outcome, accuracies, versions.

    Numbers keep every bit. The curves of the epochs stay in the store.
    """
    _check_suffix(file)
    with working("loading …"):
        from equipoise.experiments.exchange import write_csv
        from equipoise.experiments.store import Store

        with Store(store, create=False) as opened:
            count = write_csv(opened.results().values(), file)
    typer.echo(f"{count} runs in {file}")


@app.command("import", epilog="Example:  equipoise store import cluster.sqlite")
def import_results(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table (.csv) or another store.", show_default=False)],
    store: StoreFile = DEFAULT_STORE,
) -> None:
    """Merge the results of a table or of another store into this one.

    What is here stays as it is, but for failed runs that have a result there. Doing it twice changes nothing.
    """
    with working("loading …"):
        from equipoise.experiments.exchange import read_csv
        from equipoise.experiments.store import Store

        if not file.exists():
            raise StoreError("there is no such file", where=str(file))
        with Store(store) as opened:
            if file.suffix.lower() == ".csv":
                merged = opened.merge(read_csv(file))
            else:
                with Store(file, create=False) as other:
                    merged = opened.merge(other.results(curves=True, recordings=True).values())
    told = f"{merged.added} runs added, {merged.known} already there"
    typer.echo(told + (f", {merged.replaced} failures replaced" if merged.replaced else ""))


def _check_suffix(file: Path) -> None:
    if file.suffix.lower() != ".csv":
        raise StoreError(f"a table is a .csv, not a {file.suffix or 'file without a suffix'}", where=str(file))
