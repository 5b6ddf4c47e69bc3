"""Self-contained HTML page about the runs of a store, viewable in a browser without a network.

This module gathers the numbers; ``page.html`` is the template, ``page.css`` the style and ``page.js`` the interactive
charts. The template escapes every text, and the page's content security policy allows no script other than its own.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from equipoise.atomic_write import write_atomically
from equipoise.errors import EquipoiseError, SpecError
from equipoise.experiments.experiment import Cell, Experiment
from equipoise.experiments.parser import experiment_names, further_experiment_names
from equipoise.experiments.result import Result, describe_machine, library_versions
from equipoise.experiments.store import DEFAULT_PATH, Store
from equipoise.report.claim_text import ClaimText
from equipoise.report.claims import Judgement
from equipoise.report.figures import draw_figure, has_figure
from equipoise.report.frames import FrameLoader, frame_loader
from equipoise.report.page_data import page_data
from equipoise.report.tables import TableReport

DPI = 100  # sharp enough at the width of the page, at about 100 kB per figure

MAIN_TABLE = "sgd"  # comes first

TALLY: dict[Judgement, str] = {  # judgement → what a number of claims does, in the order of the page
    "holds": "hold",
    "holds but for noise": "hold but for noise",
    "contradicted": "contradicted",
    "open": "open",
}

ExperimentReport = tuple[Experiment, TableReport]


@dataclass(frozen=True)
class PageClaim:
    """A claim in the overview of all claims.

    Attributes:
        experiment: name of its experiment.
        anchor: anchor of its details.
        claim: the judged claim.
    """

    experiment: str
    anchor: str
    claim: ClaimText


@dataclass(frozen=True)
class PageSection:
    """Section of the page about one experiment.

    Attributes:
        report: table, claims and notes.
        command: command that reproduces the experiment.
        commands: for each row of the table, the command that reproduces its number.
        shows_accuracy: whether the figure is drawn and shows accuracy against depth.
        figure: PNG as a ``data:`` URL; empty if there is none.
        caption: caption of the figure, or the reason why it is not drawn.
        judgements: judgement → number of claims.
        completion: share of the experiment's runs that are in the store.
    """

    report: TableReport
    command: str
    commands: Sequence[str]
    shows_accuracy: bool
    figure: str
    caption: str
    judgements: Mapping[str, int]
    completion: float


def write_page(path: Path, reports: Sequence[ExperimentReport], store: Store) -> Path:
    """Render the page and write it to a file.

    Args:
        path: file to write.
        reports: experiments on the page, with the epochs of their runs, and their reports.
        store: store with the runs.

    Returns:
        The path that was written.

    Raises:
        SpecError: if the file cannot be written.
    """
    try:
        write_atomically(path, render_page(reports, store))
    except OSError as error:
        raise SpecError(f"the page cannot be written: {error.strerror}", where=str(path)) from error
    return path


def render_page(reports: Sequence[ExperimentReport], store: Store) -> str:
    """Render the page as HTML; arguments as in :func:`write_page`."""
    experiments = [experiment for experiment, _ in reports]
    results = store.results(spec.key for experiment in experiments for spec in experiment.specs)
    load_frame = frame_loader(store)
    sections = [_section(experiment, report, results, load_frame, store) for experiment, report in reports]
    sections.sort(key=lambda section: (section.report.name != MAIN_TABLE, -section.completion))
    script = _read_asset("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # Unsorted, because the script offers choices in the order of the data.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    return environment.from_string(_read_asset("page.html")).render(
        sections=sections,
        claims=(claims := _order_claims(sections)),
        tally=[(judgement, text, _count(claims, judgement)) for judgement, text in TALLY.items()],
        lacking=sum(one.claim.lacks_runs for one in claims),
        lead=next((section for section in sections if section.report.panels), None),
        store=store.path.name,
        page_command=shlex.join(["equipoise", "report", *map(_target, experiments), "--html", *_store_option(store)]),
        runs=len(results),
        style=_read_asset("page.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=page_data(experiments, store),
        environments=_environments(results.values()),
        machine=describe_machine(),
        versions=library_versions(),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _order_claims(sections: Sequence[PageSection]) -> list[PageClaim]:
    """All claims by verdict; open ones without any runs are last."""
    claims = [
        PageClaim(section.report.name, f"claim-{i}-{j}", claim)
        for i, section in enumerate(sections, start=1)
        for j, claim in enumerate(section.report.claims, start=1)
    ]
    order = list(TALLY)
    claims.sort(key=lambda one: (order.index(one.claim.judgement), not one.claim.has_runs))
    return claims


def _count(claims: Iterable[PageClaim], judgement: Judgement) -> int:
    return sum(one.claim.judgement == judgement for one in claims)


def _section(
    experiment: Experiment, report: TableReport, results: Mapping[str, Result], load_frame: FrameLoader, store: Store
) -> PageSection:
    png = caption = ""
    if has_figure(experiment):
        try:
            figure = draw_figure(experiment, results, load_frame)
            png, caption = _png_url(figure), figure.get_supxlabel()
        except EquipoiseError as error:
            caption = f"Not drawn: {error.what}. {error.remedy}".strip()
    has_runs = experiment.kind != "data"
    done = sum(spec.key in results for spec in experiment.specs)
    return PageSection(
        report=report,
        command=reproduce_command(experiment, store=store),
        commands=[reproduce_command(experiment, cell, store) for cell in experiment.cells] if has_runs else [],
        shows_accuracy=bool(png) and "accuracy" in experiment.draws,
        figure=png,
        caption=caption,
        judgements=Counter(claim.judgement for claim in report.claims),
        completion=done / len(experiment.specs) if has_runs else 1.0,
    )


def reproduce_command(experiment: Experiment, cell: Cell | None = None, store: Store | None = None) -> str:
    """Build the command that reproduces an experiment or, as narrowly as the options allow, one of its cells.

    Args:
        experiment: experiment to reproduce.
        cell: one of its cells; None for all of them.
        store: store with the runs; None for the default one.

    Returns:
        The command line, quoted for a shell.

    Example:
        >>> from equipoise.experiments.parser import load_experiment
        >>> sgd = load_experiment("sgd").subset(epochs=200)
        >>> reproduce_command(sgd, sgd.cells[0])
        'equipoise reproduce sgd --dataset cora --depth 2 --init xav --epochs 200'
    """
    if experiment.kind == "data":
        return shlex.join(["equipoise", "report", _target(experiment)])
    arguments = ["equipoise", "reproduce", _target(experiment)]
    if cell is not None and cell.specs:
        for setting in ("dataset", "depth", "init"):
            if len({getattr(spec, setting) for spec in experiment.specs}) > 1:
                arguments += [f"--{setting}", str(getattr(cell.specs[0], setting))]
    if experiment.remark:  # the runs have another number of epochs than the experiment's file
        arguments += ["--epochs", str(experiment.specs[0].epochs)]
    return shlex.join(arguments + _store_option(store))


def _target(experiment: Experiment) -> str:
    """What to type for an experiment: its name, or the path of its file."""
    known = (*experiment_names(), *further_experiment_names())
    return experiment.target or (experiment.name if experiment.name in known else f"{experiment.name}.toml")


def _store_option(store: Store | None) -> list[str]:
    return [] if store is None or store.path == DEFAULT_PATH else ["--store", str(store.path)]


def _png_url(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _environments(results: Iterable[Result]) -> list[dict[str, object]]:
    """Machines and library versions of the runs with their number of runs, most frequent first."""
    counts = Counter((result.machine, tuple(sorted(result.versions.items()))) for result in results)
    return [
        {"runs": count, "machine": machine, "versions": ", ".join(f"{name} {number}" for name, number in versions)}
        for (machine, versions), count in counts.most_common()
    ]


def _read_asset(name: str) -> str:
    return (files("equipoise.report") / name).read_text(encoding="utf-8")
