"""``equipoise discover``: the laws of a network of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.commands.terminal import working
from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equipoise.laws.law import Law

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FACTORY",
        help="package.module:factory or path/to/file.py:factory, a function that returns the model and its inputs "
        "(model, x, edge_index).",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Save a picture of c per neuron and law (.png, .svg or .pdf)."),
]


def discover(target: Target, as_json: Json = False, plot: Plot = None) -> None:
    """Find every rescaling law of a network, from its gradients alone."""
    with working(f"finding the laws of {target} …"):
        from equipoise.laws.discover import discover as find
        from equipoise.target import load_target

        model, inputs, kwargs = load_target(target)
        laws = find(model, *inputs, **kwargs)
    if as_json:
        typer.echo(json.dumps([_plain(law) for law in laws], indent=2))
    elif laws:
        typer.echo("\n".join(map(str, laws)))
    else:
        typer.echo(f"{type(model).__name__} has no rescaling law; `equipoise inspect {target}` says why.")
    draw_laws(laws, plot, target)


def _plain(law: Law) -> dict[str, object]:
    sides = {
        side: [str(slot) for slot in slots] for side, slots in (("incoming", law.incoming), ("outgoing", law.outgoing))
    }
    return {"law": str(law), **sides, "neurons": law.neurons}


def draw_laws(laws: Sequence[Law], path: Path | None, title: str) -> None:
    """Save a picture of c per neuron and law, where one is wanted."""
    if path is None:
        return
    if not laws:
        raise EquipoiseError(
            "there is no law to draw", where=title, remedy="`equipoise inspect` says why there is none"
        )
    from equipoise.report.figures import draw_imbalance, gather_imbalance, save_figure

    saved = save_figure(draw_imbalance([gather_imbalance(laws, title)]), path)
    typer.echo(f"picture: {saved}", err=True)
