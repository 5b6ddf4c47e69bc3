"""Options that may name a file, and need not: ``--figure`` and ``--figure cora.png``."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OPTIONS = ("--figure", "--html")
AUTOMATIC = Path()  # what such an option has where no file is named; no file has this name


class OptionalFiles(TyperCommand):
    """A command with such options. What follows one is its file if it looks like one, and no experiment (.toml)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put in what was left out."""
        return super().parse_args(ctx, list(_completed(args)))


def _completed(args: Sequence[str]) -> Iterator[str]:
    for this, following in pairwise([*args, ""]):
        if this in OPTIONS and (following.startswith("-") or Path(following).suffix in ("", ".toml")):
            yield f"{this}={AUTOMATIC}"
        else:
            yield this
