"""``equipoise partition``: split a graph into parts, one per rank of distributed training."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from equipoise.commands.options import DataRoot, Json
from equipoise.commands.terminal import progress_bars, spinner
from equipoise.data.catalog import CATALOG

Option = typer.Option


def partition(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH",
            help="Data set (`equipoise data list`), or a folder with x.npy, edge_index.npy and, optionally, y.npy, "
            "train_mask.npy, val_mask.npy, test_mask.npy and edge_attr.npy.",
            show_default=False,
        ),
    ],
    *,
    parts: Annotated[int, Option(help="Number of parts, one per rank.", show_default=False)],
    out: Annotated[Path, Option(metavar="FOLDER", help="Folder to write.", show_default=False)],
    method: Annotated[
        str, Option(help="metis (`pip install 'equipoise\\[metis]'`), blocks, or auto: metis if it is installed.")
    ] = "auto",
    force: Annotated[bool, Option("--force", help="Replace the partition in the folder.")] = False,
    width: Annotated[int, Option(min=1, help="Width of the network, for the printed bytes of an exchange.")] = 64,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Split a graph into parts with about equal numbers of edges and few edges between them.

    Each part is a folder of memory-mapped arrays: own nodes, their incoming edges, features, labels and masks.
    `torchrun -m equipoise train --parts FOLDER` trains on them.
    """
    with spinner("loading torch, PyG and the data …"):
        from equipoise.data.load import load_dataset
        from equipoise.distributed.parts.partition import check_destination
        from equipoise.distributed.parts.partition import partition as partition_graph

        check_destination(out, force=force)
        folder = Path(graph)
        is_folder = (folder / "edge_index.npy").exists() or (
            graph.lower() not in CATALOG and (folder.is_dir() or os.sep in graph)
        )
        data = folder if is_folder else load_dataset(graph, data_root)
    with _stages() as on_progress:
        summary = partition_graph(data, parts, out, method=method, force=force, on_progress=on_progress)
    typer.echo(json.dumps(summary.to_dict(width), indent=2) if as_json else summary.to_text(width))


@contextmanager
def _stages() -> Iterator[Callable[[str, int, int], None]]:
    """Show one progress bar per stage; yields a callback for ``on_progress``."""
    with progress_bars() as progress:
        tasks = {}

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total, status="")
            progress.update(tasks[stage], completed=done)

        yield on_progress
