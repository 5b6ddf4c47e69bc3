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
        _try_to_write(folder)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror}", where=where, remedy="name a writable file"
        ) from error


def check_output_folder(path: Path | None, option: str) -> None:
    """Create a folder, and check that files can be written to it.

    Args:
        path: The folder; None if the option is not given.
        option: Name of the option, for messages.

    Raises:
        SpecError: If it is a file or cannot be written.
    """
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        _try_to_write(path)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror}", where=f"{option} {path}", remedy="name a writable folder"
        ) from error


def _try_to_write(folder: Path) -> None:
    with NamedTemporaryFile(dir=folder, suffix=".tmp") as file:
        file.write(b"equipoise")
