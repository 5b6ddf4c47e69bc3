"""``equipoise status``: progress of the experiments."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from equipoise.commands.options import (
    DEFAULT_STORE,
    Dataset,
    Depth,
    Epochs,
    ExperimentNames,
    Init,
    Json,
    Seeds,
    StoreFile,
    Variant,
    select_experiments,
)
from equipoise.commands.terminal import print_tables, spinner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equipoise.experiments.experiment import Experiment

STATES = ("done", "running", "missing", "failed", "diverged")


def status(
    names: ExperimentNames = None,
    *,
    dataset: Dataset = None,
    depth: Depth = None,
    init: Init = None,
    variant: Variant = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    store: StoreFile = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Count the runs of each experiment that are done, running, missing, failed and diverged.

    Without a name, lists all experiments. Give the same options
    as to `reproduce`: a run of 200 epochs differs from a run of 5000.
    """
    with spinner("reading the store …"):
        from equipoise.experiments.parser import experiment_names, further_experiment_names

        experiments = select_experiments(
            names or experiment_names() + further_experiment_names(),
            dataset=dataset,
            depth=depth,
            init=init,
            variant=variant,
            seeds=seeds,
            epochs=epochs,
        )
        outcomes, running, owner = _read_store(store)
    rows = [{"experiment": experiment.name, **_counts(experiment, outcomes, running)} for experiment in experiments]
    if as_json:
        typer.echo(json.dumps({"store": str(store), "lock_owner": owner or None, "experiments": rows}, indent=2))
        return
    _print_table(rows)
    typer.echo(f"\n{store}: {len(outcomes)} runs" if store.exists() else f"\nthere is no store {store} yet", err=True)
    if owner:
        typer.echo(f"a sweep is running: {owner}", err=True)


def _read_store(path: Path) -> tuple[dict[str, str], set[str], str]:
    """Outcomes by key, keys of running runs, and the process that runs them."""
    from equipoise.experiments.store import Store
    from equipoise.experiments.sweep import is_locked

    if not path.exists():
        return {}, set(), ""
    with Store(path, read_only=True) as store:
        if is_locked(path):
            return store.outcomes(), set(store.running()), store.lock_owner()
        return store.outcomes(), set(), ""


def _counts(experiment: Experiment, outcomes: Mapping[str, str], running: set[str]) -> dict[str, int]:
    def state(key: str) -> str:
        if key in running:
            return "running"
        outcome = outcomes.get(key, "missing")
        return outcome if outcome in STATES else "done"

    states = Counter(state(spec.key) for spec in experiment.specs)
    return {"runs": len(experiment.specs), **{name: states[name] for name in STATES}}


def _print_table(rows: Sequence[Mapping[str, object]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "experiment" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    print_tables(table)
