"""Files that a command writes: checked before the work, so that no result is lost for want of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from equipoise.errors import ChoiceError, SpecError

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")


def check_output(path: Path | None, option: str, suffixes: Sequence[str] = ()) -> None:
    """Check that a file can be written.

    Args:
        path: The file; None if the option is not given, ``-`` for stdout.
        option: Name of the option, for messages.
        suffixes: Allowed suffixes; any if empty.

    Raises:
        ChoiceError: For another suffix.
        SpecError: If the path is a folder, its folder does not exist, or one of them cannot be written.
    """
    if path is None or path == Path("-"):
        return
    where = f"{option} {path}"
    if suffixes and path.suffix.lower() not in suffixes:
        raise ChoiceError(f"suffix of {where}:", path.suffix, suffixes)
    if path.is_dir():
        raise SpecError("this is a folder, not a file", where=where, remedy=f"name a file in it: {path / 'name'}")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise SpecError(f"there is no folder {folder}", where=where, remedy="create it first")
    try:
        if path.exists():
            path.open("ab").close()
        with NamedTemporaryFile(dir=folder, suffix=".tmp") as file:
            file.write(b"equipoise")
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror}", where=where, remedy="name a writable file"
        ) from error
