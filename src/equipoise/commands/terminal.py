"""What commands show while they work; nothing where output does not go to a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from equipoise.train.history import History


@contextmanager
def working(message: str) -> Iterator[None]:
    """A spinner while something takes its time."""
    from rich.console import Console

    with Console(stderr=True).status(message):
        yield


def bars() -> Progress:
    """Progress bars with a free text at the end and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        "{task.description}",
        BarColumn(24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[says]}"),
    )
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal)


@contextmanager
def epoch_bar(epochs: int) -> Iterator[Callable[[int, History], None]]:
    """A progress bar over epochs, with loss, validation accuracy and time left."""
    with bars() as progress:
        task = progress.add_task("epoch", total=epochs, says="")

        def show(epoch: int, history: History) -> None:
            says = f"loss {history.loss[-1]:.4f}  validation {100 * history.val_accuracy[-1]:.1f} %"
            progress.update(task, completed=epoch, says=says)

        yield show
