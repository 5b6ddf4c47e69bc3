"""Memory of processes and of this machine, from Linux's /proc and control groups; ``None`` or zero elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60  # control groups of version 1 state a number of this size if there is no limit


def memory_limit() -> int | None:
    """Return the memory that the processes of this machine may use together, in bytes.

    Returns:
        The smaller of the installed memory and the limits of the control groups of this process (containers, batch
        systems); ``None`` if unknown.
    """
    limits = [value for group in _own_groups() for folder in group for value in _read_limits(folder)]
    if (total := _field(PROC / "meminfo", "MemTotal")) is not None:
        limits.append(total)
    return min(limits, default=None)


def peak_memory(pid: int) -> int:
    """Return the largest memory that a live process has had so far, in bytes; 0 if unknown."""
    return _field(PROC / str(pid) / "status", "VmHWM") or 0


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed because memory was exhausted.

    Returns:
        The count of the control group of this process; that of the machine if no group counts.
    """
    files = [file for group in _own_groups() for file in _event_files(group[0])]
    return sum(_field(file, "oom_kill") or 0 for file in files or [PROC / "vmstat"])


def _own_groups() -> list[list[Path]]:
    """Find the control groups of this process that count memory, version 1 or 2.

    The limit of a group holds for all groups below it: batch systems limit a job and start processes in groups of it.

    Returns:
        The folder of each group, followed by those of its parents.
    """
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root = CGROUPS / controllers
            own = root / path.lstrip("/")
            folders = [own, *own.parents[: len(own.parts) - len(root.parts)]]
            # Inside a container, the group's own path may not be visible; its files then are at the root.
            groups.append([folder for folder in folders if folder.is_dir()])
    return [group for group in groups if group]


def _read_limits(folder: Path) -> list[int]:
    values = []
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < UNLIMITED:
            values.append(int(text))
    return values


def _event_files(folder: Path) -> list[Path]:
    return [folder / name for name in ("memory.events", "memory.oom_control") if (folder / name).is_file()]


def _field(file: Path, name: str) -> int | None:
    """Read ``name  number`` or ``name: number kB`` from a file."""
    try:
        text = file.read_text()
    except OSError:
        return None
    found = re.search(rf"^{name}:?\s+(\d+)( kB)?$", text, re.MULTILINE)
    return None if found is None else int(found[1]) * (1024 if found[2] else 1)
