"""The command line. Commands import torch and other large packages only when they run, so that help is fast."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, NoReturn

import typer

from equipoise import __version__
from equipoise.commands import bench, data, demo, discover, inspect, partition, report, reproduce, status, store, train
from equipoise.commands.options import OptionalFileCommand
from equipoise.errors import EquipoiseError, is_out_of_memory
from equipoise.inert_text import printable

app = typer.Typer(
    name="equipoise",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"equipoise {__version__}")
        raise typer.Exit


@app.callback(epilog="Start with:  equipoise demo")
def equipoise(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Deep graph neural networks that train: find a network's conservation laws, measure its balance, restore it."""


app.command(epilog="Example:  equipoise demo --plot balance.png")(demo.demo)
app.command(epilog="Example:  equipoise discover mypackage.models:deep_gat --plot balance.png")(discover.discover)
app.command(
    epilog="Example:  equipoise inspect models.py:deep_gat  |  equipoise inspect cora --depth 2,5,10 --kind gatv2"
)(inspect.inspect)
app.command(epilog="Example:  equipoise train --dataset cora --layers 10 --init bal-o --lr 0.05 --epochs 1500")(
    train.train
)
app.command(epilog="Example:  equipoise partition cora --parts 4 --out parts")(partition.partition)
app.command(
    cls=OptionalFileCommand,
    epilog="Example:  equipoise reproduce sgd --dataset texas,cornell --seeds 2 --epochs 200"
    "  |  equipoise reproduce conservation --figure",
)(reproduce.reproduce)
app.command(epilog="Example:  equipoise status sgd adam")(status.status)
app.command(
    cls=OptionalFileCommand,
    epilog="Example:  equipoise report sgd --store equipoise.sqlite --out tables  |  equipoise report --html",
)(report.report)
app.add_typer(store.app, name="store")
app.command(epilog="Example:  equipoise bench --case cora-10 --case scaling --figure bench.png --json bench.json")(
    bench.bench
)
app.add_typer(data.app, name="data")


class _StderrHandler(logging.Handler):
    """Print log messages to the current ``sys.stderr``, which progress bars redirect."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def _show_log_messages() -> None:
    """Show the library's INFO messages, such as that kernels are being compiled."""
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("equipoise")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def main() -> NoReturn:
    """Run the command line and exit: 0 on success, 1 if the work failed, 2 for an impossible request, 130 on Ctrl-C."""
    _show_log_messages()
    code: object = 0
    try:
        try:
            app()
        except SystemExit as exit_:
            code = exit_.code
        sys.stdout.flush()  # here, where a full disk is an error in words
    except EquipoiseError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except OSError as error:
        _fail(f"{error.filename or 'the output'} cannot be read or written: {error.strerror or error}", 1)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail("there is not enough memory\n  remedy: choose a narrower or shallower network, or a smaller graph", 1)
    if code == 130:
        typer.echo("interrupted", err=True)
    sys.exit(code)  # type: ignore[arg-type]


def _fail(message: str, code: int) -> NoReturn:
    typer.secho(f"error: {printable(message)}", fg=typer.colors.RED, err=True)
    sys.stdout = None  # nothing more to flush at exit
    sys.exit(code)
