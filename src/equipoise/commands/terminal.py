"""Progress on the terminal: spinners, progress bars, and displays of a sweep. Nothing moves if stderr is redirected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

from equipoise.commands.options import format_duration
from equipoise.experiments.callback import SweepCallback

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table

    from equipoise.experiments.result import Result
    from equipoise.experiments.spec import RunSpec
    from equipoise.training.history import History

LONG = 3600.0  # seconds of work that deserve a warning before it starts
MEASURED = 2.0  # seconds of training after which its speed is known

CellKeys = Sequence[frozenset[str]]  # for each cell the keys of its runs


@contextmanager
def spinner(message: str) -> Iterator[None]:
    """Show a spinner during the ``with`` block."""
    from rich.console import Console

    with Console(stderr=True).status(message):
        yield


def print_tables(*tables: Table) -> None:
    """Print tables one below the other; a narrow terminal wraps texts and lines, but numbers are never cut."""
    from rich.console import Console

    for table in tables:
        needed = Console(width=1000).measure(table).minimum  # a measure never exceeds the console's width
        Console(width=max(Console().width, needed)).print(table)


def progress_bars() -> Progress:
    """Progress bars with the remaining time and a ``status`` text."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        "{task.description}",
        BarColumn(24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
    )
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal)


def warn_if_long(seconds: float, what: str) -> bool:
    """Print an estimated duration if it is longer than :data:`LONG`, also where no progress bar is shown.

    Args:
        seconds: estimate.
        what: the work, the beginning of a sentence.

    Returns:
        Whether it is.
    """
    if seconds > LONG:
        typer.echo(f"{what} may take {format_duration(seconds)}; Ctrl-C stops", err=True)
    return seconds > LONG


@contextmanager
def epoch_bar(epochs: int, warned: bool = False) -> Iterator[Callable[[int, History], None]]:
    """Show a progress bar over epochs, and warn of a training that takes hours.

    Args:
        epochs: number of epochs.
        warned: whether a warning was printed before.

    Yields:
        A callback for ``on_epoch``. It measures the duration of an epoch and warns if nothing did before.
    """
    with progress_bars() as progress:
        task = progress.add_task("epoch", total=epochs, status="")

        def on_epoch(epoch: int, history: History) -> None:
            nonlocal warned
            if not warned and history.seconds >= MEASURED:
                warned = True
                warn_if_long(history.seconds / epoch * epochs, f"{epochs} epochs")
            status = f"loss {history.loss[-1]:.4f}  validation {100 * history.val_metric[-1]:.1f} %"
            progress.update(task, completed=epoch, status=status)

        yield on_epoch


class SweepProgress(SweepCallback):
    """Count completed cells and runs, and estimate the remaining time from the cost of the completed runs."""

    def __init__(self, cells: CellKeys, done: set[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.cells, self.done, self.clock = cells, set(done), clock
        self.todo: dict[str, float] = {}  # key → rough seconds
        self.completed: dict[str, float] = {}
        self.running: dict[str, str] = {}  # key → label
        self.start = clock()

    def on_sweep_start(self, todo: Sequence[RunSpec]) -> None:
        """Start counting; runs that are repeated no longer count as done. Warn of a sweep that takes hours."""
        from equipoise.experiments.cost import rough_seconds

        self.todo = {spec.key: rough_seconds(spec) for spec in todo}
        warn_if_long(sum(self.todo.values()), f"on one core, {len(todo)} runs")
        self.done -= self.todo.keys()
        self.start = self.clock()

    def on_run_start(self, spec: RunSpec) -> None:
        """Add a running run."""
        self.running[spec.key] = spec.label

    def on_run_end(self, result: Result) -> None:
        """Move a run from running to done."""
        self.running.pop(result.key, None)
        self.completed[result.key] = self.todo[result.key]
        self.done.add(result.key)

    def __str__(self) -> str:
        cells = sum(cell <= self.done for cell in self.cells)
        text = f"{cells}/{len(self.cells)} cells"
        if self.completed:
            elapsed = max(self.clock() - self.start, 1e-9)
            cost = sum(self.completed.values())
            remaining = (sum(self.todo.values()) - cost) * elapsed / cost
            text += f", {len(self.completed) * 3600 / elapsed:.0f} runs/h, {format_duration(remaining)} left"
        return text


class SweepLog(SweepProgress):
    """Print one line per completed run, for log files."""

    def on_wait(self, message: str) -> None:
        """Print the message."""
        typer.echo(message, err=True)

    def on_sweep_start(self, todo: Sequence[RunSpec]) -> None:
        """Print the number of runs."""
        super().on_sweep_start(todo)
        typer.echo(f"{len(todo)} runs to do", err=True)

    def on_run_end(self, result: Result) -> None:
        """Print the result."""
        super().on_run_end(result)
        typer.echo(f"[{len(self.completed)}/{len(self.todo)}] {format_result(result)}  ({self})", err=True)


class SweepDisplay(SweepProgress):
    """Show a progress bar, the running runs and the last result, for terminals; a context manager."""

    def __init__(self, cells: CellKeys, done: set[str], console: Console) -> None:
        from rich.live import Live

        super().__init__(cells, done)
        self.console, self.last = console, ""
        self.live = Live(console=console, get_renderable=self._render, refresh_per_second=2, transient=True)

    def __enter__(self) -> SweepDisplay:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def on_wait(self, message: str) -> None:
        """Print the message."""
        self.console.print(message)

    def on_run_end(self, result: Result) -> None:
        """Show the result; print it permanently if the run was unsuccessful."""
        super().on_run_end(result)
        self.last = format_result(result)
        if result.outcome in ("failed", "diverged"):
            self.console.print(self.last, markup=False, highlight=False)

    def _render(self) -> RenderableType:
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        if not self.todo:
            return Text("")
        total = sum(self.todo.values())
        header: list[Any] = [
            ProgressBar(total=total, completed=sum(self.completed.values()), width=30),
            Text(f"{len(self.completed)}/{len(self.todo)} runs, {self}"),
        ]
        lines = [f"running  {label}" for label in self.running.values()]
        if self.last:
            lines.append(f"last     {self.last}")
        return Group(Columns(header), *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines))


def format_result(result: Result) -> str:
    """Describe a run in one line."""
    text = f"{result.spec.label}: {result.outcome}"
    if result.outcome in ("failed", "diverged"):
        text += f", {result.reason}"
    if result.test_accuracy is not None:
        text += f", {100 * result.test_accuracy:.1f} % at epoch {result.best_epoch}"
    return f"{text}, {format_duration(result.seconds)}"
