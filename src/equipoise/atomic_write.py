"""Replace a file in one step: readers see the old content or the new one, never a part of either."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Write a file under a temporary name next to it, flush it to the disk, and rename it.

    If writing fails (full disk, file-size limit), the temporary file is removed and an earlier file stays as it was.
    A symbolic link is followed; a path that exists and is no regular file, such as ``/dev/stdout``, is written to.

    Args:
        path: the file.
        content: its new content; text is encoded as UTF-8.

    Raises:
        OSError: If the file cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "table.csv", "a,b\\n")
        ...     [file.name for file in Path(folder).iterdir()]
        ['table.csv']
    """
    target = Path(path).resolve()
    data = content.encode() if isinstance(content, str) else content
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
