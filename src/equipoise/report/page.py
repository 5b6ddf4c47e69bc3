"""One page with everything about a store's runs: self-contained, for a browser without a network.

Numbers are gathered here, page.html says where they go, page.css how they look, page.js lets a reader explore them.
Every text is escaped by the template; besides, the page's policy lets no script run but its own.
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

from equipoise.errors import EquipoiseError, SpecError
from equipoise.experiments.experiment import Cell, Experiment
from equipoise.experiments.files import targets
from equipoise.experiments.result import Result, machine, versions
from equipoise.experiments.store import Store
from equipoise.report.explore import explored
from equipoise.report.frames import Frames, frames_of
from equipoise.report.gallery import draw, is_drawn
from equipoise.report.tables import Report

DPI = 100  # of a figure: sharp enough at the width of a page, a hundred kilobytes


@dataclass(frozen=True)
class Section:
    """What the page says about one target.

    Attributes:
        report: the table, the claims and the notes.
        command: what makes all of it.
        commands: for each row of the table, what makes its number.
        figure: a PNG as a ``data:`` address; empty where there is none.
        caption: what stands below the figure, or why there is none.
        verdicts: word → how many claims.
        done: the share of its runs that are there.
    """

    report: Report
    command: str
    commands: Sequence[str]
    figure: str
    caption: str
    verdicts: Mapping[str, int]
    done: float


def write_page(path: Path, chosen: Sequence[tuple[Experiment, Report]], store: Store) -> Path:
    """Write the page and return where it is."""
    try:
        path.write_text(page(chosen, store), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"the page cannot be written: {error.strerror}", where=str(path)) from error
    return path


def page(chosen: Sequence[tuple[Experiment, Report]], store: Store) -> str:
    """The page as text.

    Args:
        chosen: what it is about, at the epochs that the runs have, each with its report.
        store: where the runs are.
    """
    experiments = [experiment for experiment, _ in chosen]
    results = store.results(spec.key for experiment in experiments for spec in experiment.specs)
    frames = frames_of(store)
    sections = [_section(experiment, report, results, frames) for experiment, report in chosen]
    script = _file("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    compact = {"sort_keys": False, "separators": (",", ":")}  # choices are offered in the order given here
    environment.policies["json.dumps_kwargs"] = compact
    return environment.from_string(_file("page.html")).render(
        sections=sorted(sections, key=lambda section: -section.done),  # what shares a run or two with others comes last
        store=store.path.name,
        again=shlex.join(["equipoise", "report", "--html", "--store", store.path.name]),
        runs=len(results),
        style=_file("page.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=explored(experiments, store),
        environments=_environments(results.values()),
        here={"machine": machine(), **versions()},
        when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _section(experiment: Experiment, report: Report, results: Mapping[str, Result], frames: Frames) -> Section:
    figure = caption = ""
    if is_drawn(experiment):
        try:
            drawn = draw(experiment, results, frames)
            figure, caption = _png(drawn), drawn.get_supxlabel()
        except EquipoiseError as error:
            caption = f"Not drawn: {error.what}. {error.remedy}".strip()
    trained = experiment.kind != "data"
    return Section(
        report=report,
        command=command(experiment),
        commands=[command(experiment, cell) for cell in experiment.cells] if trained else [],
        figure=figure,
        caption=caption,
        verdicts=Counter(line.word for line in report.claims),
        done=sum(spec.key in results for spec in experiment.specs) / len(experiment.specs) if trained else 1.0,
    )


def command(experiment: Experiment, cell: Cell | None = None) -> str:
    """What to type for an experiment, or the narrowest that makes one of its cells.

    Example:
        >>> from equipoise.experiments.files import load
        >>> sgd = load("sgd").narrowed(epochs=200)
        >>> command(sgd, sgd.cells[0])
        'equipoise reproduce sgd --dataset cora --depth 2 --init xav --epochs 200'
    """
    name = experiment.name if experiment.name in targets() else f"{experiment.name}.toml"
    if experiment.kind == "data":
        return shlex.join(["equipoise", "report", name])
    words = ["equipoise", "reproduce", name]
    for setting in ("dataset", "depth", "init") if cell is not None and cell.specs else ():
        if len({getattr(spec, setting) for spec in experiment.specs}) > 1 and cell is not None:
            words += [f"--{setting}", str(getattr(cell.specs[0], setting))]
    if experiment.remark:  # its runs are not those of its file
        words += ["--epochs", str(experiment.specs[0].epochs)]
    return shlex.join(words)


def _png(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _environments(results: Iterable[Result]) -> list[dict[str, object]]:
    """Machines and versions that the runs come from, with how many of them, most first."""
    found = Counter((result.machine, tuple(sorted(result.versions.items()))) for result in results)
    return [
        {"runs": count, "machine": where, "versions": ", ".join(f"{name} {number}" for name, number in used)}
        for (where, used), count in found.most_common()
    ]


def _file(name: str) -> str:
    return (files("equipoise.report") / name).read_text(encoding="utf-8")
