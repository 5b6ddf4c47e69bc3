"""``equipoise data``: what data sets there are, fetch them, check them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.terminal import working
from equipoise.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from equipoise.data.catalog import Entry

app = typer.Typer(no_args_is_help=True, help="The data sets: what there is and where, fetch them, check them.")

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Data sets; all if none is named.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("list", epilog="Example:  equipoise data list --json")
def list_datasets(as_json: Json = False) -> None:
    """List the data sets: how large they are, and whether their files are here."""
    from equipoise.data.catalog import CATALOG
    from equipoise.data.folders import data_folder

    folder = data_folder()
    if as_json:
        typer.echo(json.dumps([_plain(entry, folder) for entry in CATALOG.values()], indent=2))
    else:
        _print_table(list(CATALOG.values()), folder)


@app.command(epilog="Example:  equipoise data fetch cora texas")
def fetch(names: Names = None) -> None:
    """Download data sets into the cache, where they are not here yet; exit with 1 if that fails."""
    from equipoise.data.files import read_files, unusable_files
    from equipoise.data.folders import data_folder

    folder = data_folder()
    for entry in _entries(names):
        lacking = unusable_files(entry.files, folder)
        try:
            read_files(entry)
        except DataError as error:
            typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
            raise typer.Exit(1) from error
        if not entry.files:
            typer.echo(f"{entry.name}: built in, there is nothing to fetch")
        elif lacking:
            typer.echo(f"{entry.name}: fetched {len(lacking)} of {len(entry.files)} files into {folder}")
        else:
            typer.echo(f"{entry.name}: already in {folder}")


@app.command(epilog="Example:  equipoise data verify cora citeseer")
def verify(names: Names = None) -> None:
    """Check the SHA-256 of every file and the size of every graph; exit with 1 if one is wrong or missing."""
    from equipoise.data.folders import data_folder

    entries = _entries(names)
    with working("loading torch and PyG …"):
        from equipoise.data.verify import faults
    found = {}
    for entry in entries:
        with working(f"checking {entry.name} …"):
            found[entry.name] = faults(entry)
        typer.echo(f"{entry.name}: {'wrong' if found[entry.name] else 'as it should be'}")
        for fault in found[entry.name]:
            typer.echo(f"  {fault}")
    if any(found.values()):
        typer.echo(f"files were looked for in {data_folder()}", err=True)
        raise typer.Exit(1)


def _entries(names: list[str] | None) -> list[Entry]:
    from equipoise.data.catalog import CATALOG, catalog_entry

    return [catalog_entry(name) for name in names or CATALOG]


def _is_here(entry: Entry, folder: Path) -> bool:
    from equipoise.data.folders import missing_files

    return not missing_files(entry, folder)


def _plain(entry: Entry, folder: Path) -> dict[str, object]:
    sizes = {size: getattr(entry, size) for size in ("nodes", "edges", "features", "classes")}
    split = dict(zip(("train", "val", "test"), entry.split, strict=True))
    here = _is_here(entry, folder)
    place = str(folder) if here and entry.files else None
    return {"name": entry.name, "title": entry.title, **sizes, "split": split, "here": here, "folder": place}


def _print_table(entries: list[Entry], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for column in ("nodes", "edges", "features", "classes", "train/val/test"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("files", no_wrap=True)
    for entry in entries:
        sizes = map(str, (entry.nodes, entry.edges, entry.features, entry.classes))
        files = "built in" if not entry.files else "here" if _is_here(entry, folder) else "not here"
        table.add_row(entry.name, *sizes, "/".join(map(str, entry.split)), files)
    Console().print(table)
    typer.echo(f"\nfiles are looked for in {folder}")
