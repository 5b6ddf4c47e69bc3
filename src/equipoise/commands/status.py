"""``equipoise status``: how far the experiments are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from equipoise.commands.targets import (
    DEFAULT_STORE,
    Dataset,
    Depth,
    Epochs,
    Init,
    Json,
    Seeds,
    StoreFile,
    Targets,
    experiments,
)
from equipoise.commands.terminal import working

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equipoise.experiments.experiment import Experiment

STATES = ("done", "running", "missing", "failed", "diverged")


def status(
    targets: Targets = None,
    *,
    dataset: Dataset = None,
    depth: Depth = None,
    init: Init = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    store: StoreFile = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """What is done, running, missing and failed, for each target; all of the paper's if none is named.

    Options that narrow a sweep narrow this, too: runs of 200 epochs are other runs than those of 5000.
    """
    with working("loading torch and PyG …"):
        from equipoise.experiments import files

        chosen = experiments(
            targets or files.targets(), dataset=dataset, depth=depth, init=init, seeds=seeds, epochs=epochs
        )
        outcomes, running, driver = _seen(store)
    rows = [{"target": experiment.name, **_counts(experiment, outcomes, running)} for experiment in chosen]
    if as_json:
        typer.echo(json.dumps({"store": str(store), "driver": driver or None, "targets": rows}, indent=2))
        return
    _print(rows)
    typer.echo(f"\n{store}: {len(outcomes)} runs" if store.exists() else f"\nthere is no store {store} yet", err=True)
    if driver:
        typer.echo(f"a sweep is running: {driver}", err=True)


def _seen(path: Path) -> tuple[dict[str, str], set[str], str]:
    """Outcomes by key, keys of runs that are running, and who runs them."""
    from equipoise.experiments.driver import driven
    from equipoise.experiments.store import Store

    if not path.exists():
        return {}, set(), ""
    with Store(path, create=False) as store:
        if driven(path):
            return store.outcomes(), set(store.running()), store.driver()
        return store.outcomes(), set(), ""


def _counts(experiment: Experiment, outcomes: Mapping[str, str], running: set[str]) -> dict[str, int]:
    def state(key: str) -> str:
        if key in running:
            return "running"
        outcome = outcomes.get(key, "missing")
        return outcome if outcome in STATES else "done"

    states = Counter(state(spec.key) for spec in experiment.specs)
    return {"runs": len(experiment.specs), **{name: states[name] for name in STATES}}


def _print(rows: Sequence[Mapping[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "target" else "right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
