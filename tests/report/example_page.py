"""An example page: a table with published numbers, a figure of recorded runs, and texts that contain markup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from equipoise.experiments.experiment import Experiment
from equipoise.experiments.parser import load_experiment, parse_experiment
from equipoise.experiments.store import Store
from equipoise.report.page import write_page
from equipoise.report.tables import TableReport, table_report
from tests.report.recordings import run_experiments, shrink_experiment
from tests.report.runs import COMPLETE, SMALL, make_results

SCRIPT_TAG = "<script>alert(1)</script>"
IMAGE_TAG = "<img src=x onerror=alert(2)>\"'"


def experiment_with_markup() -> Experiment:
    """A table that contains markup wherever a user can write text."""
    text = SMALL.replace("A small_table", SCRIPT_TAG).replace("50 % of it", SCRIPT_TAG + "{{ 7 * 7 }}")
    return parse_experiment(text.replace("mostly faster", SCRIPT_TAG), SCRIPT_TAG, "small.toml")


def fill_store(store: Store) -> list[tuple[Experiment, TableReport]]:
    """Put runs into the store and report on them; one experiment has no runs."""
    table, dynamics = experiment_with_markup(), shrink_experiment("dynamics-5", epochs=6)
    run_experiments(store, dynamics)
    results = make_results(table, COMPLETE)
    store.merge(replace(result, machine=IMAGE_TAG, versions={SCRIPT_TAG: IMAGE_TAG}) for result in results)
    stored = list(store.results().values())
    experiments = (load_experiment("inits"), table, dynamics)
    return [(experiment, table_report(experiment, stored)) for experiment in experiments]


def write_example_page(folder: Path) -> Path:
    with Store(folder / "runs & more.sqlite") as store:
        return write_page(folder / "page.html", fill_store(store), store)
