"""The command line. Nothing heavy is imported until a command needs it, so that help comes at once."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from equipoise import __version__
from equipoise.commands import bench, data, demo, inspect, laws, report, reproduce, status, store, train
from equipoise.commands.optional import OptionalFiles
from equipoise.errors import EquipoiseError

app = typer.Typer(
    name="equipoise",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"equipoise {__version__}")
        raise typer.Exit


@app.callback(epilog="Start with:  equipoise demo")
def equipoise(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Deep graph neural networks that train: find a network's conservation laws, see its balance, mend it."""


app.command(epilog="Example:  equipoise demo --plot balance.png")(demo.demo)
app.command(epilog="Example:  equipoise discover mypackage.models:deep_gat --plot balance.png")(laws.discover)
app.command(
    epilog="Example:  equipoise inspect models.py:deep_gat  |  equipoise inspect cora --depth 2,5,10 --kind gatv2"
)(inspect.inspect)
app.command(epilog="Example:  equipoise train --dataset cora --layers 10 --init bal-o --lr 0.05 --epochs 1500")(
    train.train
)
app.command(
    cls=OptionalFiles,
    epilog="Example:  equipoise reproduce sgd --dataset texas,cornell --seeds 2 --epochs 200"
    "  |  equipoise reproduce conservation --figure",
)(reproduce.reproduce)
app.command(epilog="Example:  equipoise status sgd adam")(status.status)
app.command(
    cls=OptionalFiles,
    epilog="Example:  equipoise report sgd --store equipoise.sqlite --out tables  |  equipoise report --html",
)(report.report)
app.add_typer(store.app, name="store")
app.command(epilog="Example:  equipoise bench --case cora-10 --case scaling --figure bench.png --json bench.json")(
    bench.bench
)
app.add_typer(data.app, name="data")


def main() -> NoReturn:
    """Run the command line; exits with 0 if it worked, 1 if it failed, 2 if what was asked for is impossible."""
    try:
        app()
    except EquipoiseError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
