"""``equipoise demo``: see it work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.commands.terminal import bars

Option = typer.Option


def demo(
    *,
    dataset: Annotated[
        str, Option(help="Data set; the default needs neither files nor a network.")
    ] = "synthetic-citation",
    layers: Annotated[int, Option(min=2, help="Depth of the network.")] = 10,
    epochs: Annotated[
        int | None, Option(min=1, help="Epochs; by default 250, on real data 1500.", show_default=False)
    ] = None,
    lr: Annotated[
        float | None, Option(help="Learning rate; by default 0.1, on real data 0.05.", show_default=False)
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the initialisations.")] = 0,
    jobs: Annotated[int | None, Option(min=1, help="Processes; by default one a core.", show_default=False)] = None,
    data_root: Annotated[
        Path | None, Option(help="Folder with the raw data; else EQUIPOISE_DATA, else a cache.")
    ] = None,
    plot: Annotated[Path, Option(metavar="FILE", help="Where to save the picture.")] = Path("equipoise-demo.png"),
) -> None:
    """See it work: a stock GAT's laws and imbalance, and a deep GAT trained from four starts side by side."""
    from rich.console import Console

    console = Console()
    with console.status("loading torch and PyG …"):
        from equipoise.demo.contrast import GRADIENT_EPOCH, SCHEMES, Settings, run_all
        from equipoise.demo.laws import show_laws
        from equipoise.report.contrast import contrast_table, draw_contrast
        from equipoise.report.figures import save_figure
    laws_picture = show_laws(plot.with_stem(f"{plot.stem}-laws"), console)

    real = dataset != Settings.dataset
    settings = Settings(
        dataset,
        data_root,
        layers,
        lr=lr or (0.05 if real else 0.1),
        epochs=epochs or (1500 if real else 250),
        seed=seed,
    )
    console.print(f"\n[bold]What balance does to training[/bold]: {settings}, from four starts side by side\n")
    with bars() as progress:
        tasks = {scheme: progress.add_task(f"{scheme:<6}", total=settings.epochs, says="") for scheme in SCHEMES}

        def report(scheme: str, epoch: int, accuracy: float) -> None:
            progress.update(tasks[scheme], completed=epoch, says=f"validation {100 * accuracy:.1f} %")

        runs = run_all(settings, report, jobs)
    console.print(contrast_table(runs))
    picture = save_figure(draw_contrast(runs, str(settings), min(GRADIENT_EPOCH, settings.epochs)), plot)
    typer.echo(f"\npictures: {picture.resolve()}\n          {laws_picture.resolve()}")
