"""``equipoise data``: list, fetch and verify data sets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.terminal import print_tables, spinner
from equipoise.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from equipoise.data.catalog import DatasetInfo

app = typer.Typer(no_args_is_help=True, help="List, fetch and verify the data sets.")

Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Data sets; by default all.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("list", epilog="Example:  equipoise data list --json")
def list_datasets(as_json: Json = False) -> None:
    """List the data sets with their sizes and whether their files are available."""
    from equipoise.data.catalog import CATALOG
    from equipoise.data.files import data_folder

    folder = data_folder()
    if as_json:
        typer.echo(json.dumps([_to_dict(info, folder) for info in CATALOG.values()], indent=2))
    else:
        _print_table(list(CATALOG.values()), folder)


@app.command(epilog="Example:  equipoise data fetch cora texas")
def fetch(names: Names = None) -> None:
    """Download the files of data sets that are not available yet; exit with 1 if that fails."""
    from equipoise.data.files import data_folder, read_files, unusable_files

    folder = data_folder()
    for info in _select(names):
        unusable = unusable_files(info.files, folder)
        try:
            read_files(info)
        except DataError as error:
            typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
            raise typer.Exit(1) from error
        if not info.files:
            typer.echo(f"{info.name}: built in, nothing to fetch")
        elif unusable:
            typer.echo(f"{info.name}: fetched {len(unusable)} of {len(info.files)} files into {folder}")
        else:
            typer.echo(f"{info.name}: already in {folder}")


@app.command(epilog="Example:  equipoise data verify cora citeseer")
def verify(names: Names = None) -> None:
    """Verify the SHA-256 of every file and the size of every graph; exit with 1 if one is wrong or missing."""
    from equipoise.data.files import data_folder

    selected = _select(names)
    with spinner("loading torch and PyG …"):
        from equipoise.data.load import dataset_problems
    failed = False
    for info in selected:
        with spinner(f"checking {info.name} …"):
            problems = dataset_problems(info)
        typer.echo(f"{info.name}: {'failed' if problems else 'ok'}")
        for problem in problems:
            typer.echo(f"  {problem}")
        failed = failed or bool(problems)
    if failed:
        typer.echo(f"files are read from {data_folder()}", err=True)
        raise typer.Exit(1)


def _select(names: list[str] | None) -> list[DatasetInfo]:
    from equipoise.data.catalog import CATALOG, dataset_info

    return [dataset_info(name) for name in names or CATALOG]


def _is_available(info: DatasetInfo, folder: Path) -> bool:
    from equipoise.data.files import missing_files

    return not missing_files(info, folder)


def _to_dict(info: DatasetInfo, folder: Path) -> dict[str, object]:
    sizes = {size: getattr(info, size) for size in ("nodes", "edges", "features", "classes")}
    split = dict(zip(("train", "val", "test"), info.split, strict=True))
    available = _is_available(info, folder)
    location = str(folder) if available and info.files else None
    row = {"name": info.name, "title": info.title, **sizes, "split": split, "metric": info.metric}
    return row | {"available": available, "folder": location}


def _print_table(infos: list[DatasetInfo], folder: Path) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for column in ("nodes", "edges", "features", "classes", "train/val/test"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("files", no_wrap=True)
    for info in infos:
        sizes = map(str, (info.nodes, info.edges, info.features, info.classes))
        files = "built in" if not info.files else "available" if _is_available(info, folder) else "missing"
        table.add_row(info.name, *sizes, "/".join(map(str, info.split)), files)
    print_tables(table)
    by_auc = ", ".join(info.name for info in infos if info.metric == "roc_auc")
    typer.echo(f"\nmetric: accuracy; ROC AUC for {by_auc}" if by_auc else "\nmetric: accuracy")
    typer.echo(f"files are read from {folder}")
