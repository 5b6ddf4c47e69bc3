"""``equipoise demo``: laws, balance, and their effect on training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.commands.options import DataRoot, check_learning_rate
from equipoise.commands.outputs import FIGURE_SUFFIXES, check_output
from equipoise.commands.terminal import progress_bars
from equipoise.data.catalog import dataset_info

Option = typer.Option


def demo(
    *,
    dataset: Annotated[
        str, Option(help="Data set; the default is built in and needs no download.")
    ] = "synthetic-citation",
    layers: Annotated[int, Option(min=2, help="Depth of the network.")] = 10,
    epochs: Annotated[
        int | None, Option(min=1, help="Epochs; by default 250, on real data 1500.", show_default=False)
    ] = None,
    lr: Annotated[
        float | None, Option(help="Learning rate; by default 0.1, on real data 0.05.", show_default=False)
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the initialisation.")] = 0,
    jobs: Annotated[
        int | None, Option(min=1, help="Number of processes; by default one per core.", show_default=False)
    ] = None,
    data_root: DataRoot = None,
    plot: Annotated[Path, Option(metavar="FILE", help="File of the figure.")] = Path("equipoise-demo.png"),
) -> None:
    """Show the laws and the imbalance of a stock GAT, then train a deep GAT with four initialisation schemes."""
    from rich.console import Console

    name = dataset_info(dataset).name
    check_learning_rate(lr)
    check_output(plot, "--plot", FIGURE_SUFFIXES)
    console = Console()
    with console.status("loading torch and PyG …"):
        from equipoise.demo import GRADIENT_EPOCH, SCHEMES, DemoSettings, show_laws, train_schemes
        from equipoise.report.plots.schemes import draw_schemes, scheme_table
        from equipoise.report.plots.style import save_figure
    laws_figure = show_laws(plot.with_stem(f"{plot.stem}-laws"), console)

    real = name != DemoSettings.dataset
    settings = DemoSettings(
        name,
        data_root,
        layers,
        lr=(0.05 if real else 0.1) if lr is None else lr,
        epochs=epochs or (1500 if real else 250),
        seed=seed,
    )
    console.print(f"\n[bold]Effect of balance on training[/bold]: {settings}, four initialisation schemes\n")
    with progress_bars() as progress:
        tasks = {scheme: progress.add_task(f"{scheme:<6}", total=settings.epochs, status="") for scheme in SCHEMES}

        def on_epoch(scheme: str, epoch: int, accuracy: float) -> None:
            progress.update(tasks[scheme], completed=epoch, status=f"validation {100 * accuracy:.1f} %")

        runs = train_schemes(settings, on_epoch, jobs)
    console.print(scheme_table(runs))
    figure = save_figure(draw_schemes(runs, str(settings), min(GRADIENT_EPOCH, settings.epochs)), plot)
    typer.echo(f"\nfigures: {figure.resolve()}\n         {laws_figure.resolve()}")
