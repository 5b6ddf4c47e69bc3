"""A page to look at: a table with the paper's numbers, a figure of recorded runs, and names that mean harm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from equipoise.experiments.experiment import Experiment
from equipoise.experiments.files import load
from equipoise.experiments.reading import parse
from equipoise.experiments.store import Store
from equipoise.report.page import write_page
from equipoise.report.tables import Report, report
from tests.report.recorded import fill, in_small
from tests.report.runs import COMPLETE, SMALL, results

HOSTILE = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>\"'"


def hostile() -> Experiment:
    """A table whose texts, where a user can write them, are markup."""
    text = SMALL.replace("A small_table", HOSTILE).replace("50 % of it", HOSTILE + "{{ 7 * 7 }}")
    return parse(text.replace("mostly faster", HOSTILE), HOSTILE, "small.toml")


def chosen(store: Store) -> list[tuple[Experiment, Report]]:
    """Put the runs into the store, and report on them."""
    table, dynamics, absent = hostile(), in_small("dynamics-5", epochs=6), load("inits")
    fill(store, dynamics)
    store.merge(replace(run, machine=IMAGE, versions={HOSTILE: IMAGE}) for run in results(table, COMPLETE))
    there = list(store.results().values())
    return [(experiment, report(experiment, there)) for experiment in (absent, table, dynamics)]


def written(folder: Path) -> Path:
    """The page in a file."""
    with Store(folder / "runs & more.sqlite") as store:
        return write_page(folder / "page.html", chosen(store), store)
