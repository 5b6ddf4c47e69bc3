"""How a sweep is going, on a terminal or in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

from equipoise.commands.targets import duration
from equipoise.experiments.cost import work
from equipoise.experiments.sweep import Watcher

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from equipoise.experiments.result import Result
    from equipoise.experiments.spec import RunSpec

Cells = Sequence[frozenset[str]]  # for each cell the keys of its runs


class Pace(Watcher):
    """Counts cells and runs, and from the work done so far tells the time left."""

    def __init__(self, cells: Cells, done: set[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.cells, self.done, self.clock = cells, set(done), clock
        self.todo: dict[str, float] = {}  # key → work
        self.over: dict[str, float] = {}
        self.running: dict[str, str] = {}  # key → label
        self.start = clock()

    def begins(self, todo: Sequence[RunSpec]) -> None:
        """Start counting."""
        self.todo = {spec.key: work(spec) for spec in todo}
        self.done -= self.todo.keys()  # what is tried again is not done
        self.start = self.clock()

    def starts(self, spec: RunSpec) -> None:
        """One more is running."""
        self.running[spec.key] = spec.label

    def ends(self, result: Result) -> None:
        """One more is done."""
        self.running.pop(result.key, None)
        self.over[result.key] = self.todo[result.key]
        self.done.add(result.key)

    def __str__(self) -> str:
        cells = sum(cell <= self.done for cell in self.cells)
        text = f"{cells}/{len(self.cells)} cells"
        if self.over:
            elapsed = max(self.clock() - self.start, 1e-9)
            left = (sum(self.todo.values()) - sum(self.over.values())) * elapsed / sum(self.over.values())
            text += f", {len(self.over) * 3600 / elapsed:.0f} runs an hour, {duration(left)} left"
        return text


class Lines(Pace):
    """A line for every run that is over: for logs."""

    def waits(self, message: str) -> None:
        """Say so."""
        typer.echo(message, err=True)

    def begins(self, todo: Sequence[RunSpec]) -> None:
        """Say how many."""
        super().begins(todo)
        typer.echo(f"{len(todo)} runs to do", err=True)

    def ends(self, result: Result) -> None:
        """Say what came of it."""
        super().ends(result)
        typer.echo(f"[{len(self.over)}/{len(self.todo)}] {told(result)}  ({self})", err=True)


class Bar(Pace):
    """A bar, what is running now, and the last result: for terminals. Use it in a ``with`` block."""

    def __init__(self, cells: Cells, done: set[str], console: Console) -> None:
        from rich.live import Live

        super().__init__(cells, done)
        self.console, self.last = console, ""
        self.live = Live(console=console, get_renderable=self._shown, refresh_per_second=2, transient=True)

    def __enter__(self) -> Bar:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def waits(self, message: str) -> None:
        """Say so."""
        self.console.print(message)

    def ends(self, result: Result) -> None:
        """Keep it in sight; what went wrong stays on the screen."""
        super().ends(result)
        self.last = told(result)
        if result.outcome in ("failed", "diverged"):
            self.console.print(self.last, markup=False, highlight=False)

    def _shown(self) -> RenderableType:
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        if not self.todo:
            return Text("")
        total = sum(self.todo.values())
        counts: list[Any] = [
            ProgressBar(total=total, completed=sum(self.over.values()), width=30),
            Text(f"{len(self.over)}/{len(self.todo)} runs, {self}"),
        ]
        lines = [f"running  {label}" for label in self.running.values()] + (
            [f"last     {self.last}"] if self.last else []
        )
        return Group(Columns(counts), *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines))


def told(result: Result) -> str:
    """One run in one line."""
    text = f"{result.spec.label}: {result.outcome}"
    if result.outcome in ("failed", "diverged"):
        text += f", {result.reason}"
    if result.test_accuracy is not None:
        text += f", {100 * result.test_accuracy:.1f} % at epoch {result.best_epoch}"
    return f"{text}, {duration(result.seconds)}"
