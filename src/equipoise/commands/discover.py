"""``equipoise discover``: the rescaling laws of a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.options import Json
from equipoise.commands.outputs import FIGURE_SUFFIXES, check_output
from equipoise.commands.terminal import spinner
from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equipoise.laws.law import Law

FACTORY_HELP = (
    "package.module:factory or path/to/file.py:factory, a function that returns a model and its inputs "
    "(model, x, edge_index). The command imports and runs that code: name only code that you trust."
)
Factory = Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help=FACTORY_HELP, show_default=False)]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help="Plot c of every neuron, by law (.png, .svg or .pdf).", show_default=False
    ),
]


def discover(factory: Factory, as_json: Json = False, plot: Plot = None) -> None:
    """Find every rescaling law of a network from its gradients."""
    check_output(plot, "--plot", FIGURE_SUFFIXES)
    with spinner(f"discovering the laws of {factory} …"):
        from equipoise.factory import load_model
        from equipoise.laws.discover import discover as discover_laws

        model, inputs, kwargs = load_model(factory)
        laws = discover_laws(model, *inputs, **kwargs)
    if as_json:
        typer.echo(json.dumps([_to_dict(law) for law in laws], indent=2))
    elif laws:
        typer.echo("\n".join(map(str, laws)))
    else:
        typer.echo(f"{type(model).__name__} has no rescaling law; `equipoise inspect {factory}` explains why.")
    plot_laws(laws, plot, factory)


def plot_laws(laws: Sequence[Law], path: Path | None, title: str) -> None:
    """Plot c of every neuron by law; without a path, do nothing.

    Args:
        laws: Laws of one model.
        path: File to write.
        title: Title of the plot.

    Raises:
        EquipoiseError: If there is no law.
    """
    if path is None:
        return
    if not laws:
        raise EquipoiseError("there is no law to plot", where=title, remedy="`equipoise inspect` explains why")
    from equipoise.report.plots.imbalance import draw_imbalance, gather_imbalance
    from equipoise.report.plots.style import save_figure

    typer.echo(f"figure: {save_figure(draw_imbalance([gather_imbalance(laws, title)]), path)}", err=True)


def _to_dict(law: Law) -> dict[str, object]:
    return {
        "law": str(law),
        "incoming": [str(slot) for slot in law.incoming],
        "outgoing": [str(slot) for slot in law.outgoing],
        "exponents": [exponent for exponent, _ in law.terms],
        "conserved": law.conserved,
        "buffers": list(law.buffers),
        "neurons": law.neurons,
    }
