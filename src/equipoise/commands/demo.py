"""``equipoise demo``: see it work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Plot = Annotated[Path, typer.Option("--plot", metavar="FILE", help="Where to save the picture (.png, .svg or .pdf).")]


def demo(plot: Plot = Path("equipoise-demo.png")) -> None:
    """See it work: the laws of a stock GAT, its imbalance, and the same network in balance."""
    from rich.console import Console

    console = Console()
    with console.status("loading torch and PyG …"):
        from equipoise.demo import run_demo
    typer.echo(f"\npicture: {run_demo(plot, console).resolve()}")
