"""The process group of a partitioned graph: joined from torchrun's environment, with errors in words."""

from __future__ import annotations

import atexit
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from equipoise.errors import DistributedError
from equipoise.laws.validation import is_number

TIMEOUT = 60.0  # seconds that a rank waits for the others in one exchange
MAX_TIMEOUT = 1e9  # seconds; torch counts them in nanoseconds
POLL_SECONDS = 0.02
NAME_KEY = "equipoise/group"
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOST_RANKS: list[RuntimeError] = []  # errors of collective operations so far


def join_process_group(rank: int, parts: int, *, timeout: float = TIMEOUT) -> None:
    """Join the process group of a partition, one process per part, unless the caller has initialised one.

    A new group uses gloo and the addresses in torchrun's environment. It listens on the network interface that leads to
    ``MASTER_ADDR``, unless ``GLOO_SOCKET_IFNAME`` names another one. A single part needs no group.

    Args:
        rank: of this process.
        parts: number of parts.
        timeout: seconds that a rank waits for the others in one exchange before it raises an error.

    Raises:
        DistributedError: if there is neither a group nor torchrun's environment, rank or size differ, the ranks find
            no connection to each other, or the timeout is not a positive number.

    Example:
        >>> join_process_group(0, 1)
        >>> dist.is_initialized()
        False
    """
    _check_timeout(timeout)
    if parts == 1 and not dist.is_initialized():
        _check_size(environment_integer("WORLD_SIZE", 1), parts)
        return
    if not dist.is_initialized():
        missing = [name for name in TORCHRUN_VARIABLES if name not in os.environ]
        if missing:
            raise DistributedError(
                f"a graph of {parts} parts needs {parts} processes, but this one was started alone",
                where=f"the environment has no {', '.join(missing)}",
                remedy=f"start it with torchrun --nproc-per-node {parts}, or initialise torch.distributed first",
            )
        own_rank, size, port = (environment_integer(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        _check_size(size, parts)
        address = os.environ["MASTER_ADDR"]
        _choose_interface(address)
        try:
            _init_gloo(timeout)
        except RuntimeError as error:
            raise DistributedError(
                f"rank {own_rank}: no connection to the other ranks",
                where=f"MASTER_ADDR={address}, MASTER_PORT={port}: {_gloo_reason(error)}",
                remedy=f"start all {parts} ranks within --timeout ({timeout:g} s), with an address that each of them "
                "reaches and a port that nothing else uses",
            ) from error
    _check_size(dist.get_world_size(), parts)
    if dist.get_rank() != rank:
        raise DistributedError(
            f"this process has rank {dist.get_rank()}, but its part is that of rank {rank}",
            remedy="load the part of this rank: load_part(folder)",
        )


def environment_integer(name: str, default: int | None = None) -> int:
    """An integer in the environment, as torchrun sets it.

    Args:
        name: of the variable.
        default: value if it is not set.

    Returns:
        The integer.

    Raises:
        DistributedError: if it is none.

    Example:
        >>> environment_integer("NO_SUCH_VARIABLE", 1)
        1
    """
    value = os.environ.get(name, "" if default is None else str(default))
    try:
        return int(value)
    except ValueError:
        raise DistributedError(
            f"{name} is not an integer",
            where=f"{name}={value!r} in the environment",
            remedy="start the ranks with torchrun, which sets it",
        ) from None


def _check_timeout(timeout: object) -> None:
    if not is_number(timeout) or not 0 < timeout <= MAX_TIMEOUT:  # type: ignore[operator]
        raise DistributedError(
            f"timeout={timeout!r} is not a number of seconds above 0", remedy=f"choose one, such as {TIMEOUT:g}"
        )


def _init_gloo(timeout: float) -> None:
    """Initialise the group under keys of its own: torchrun keeps its store when it restarts the ranks.

    Without them, a restarted rank may find the address of a rank of an earlier attempt, and wait for it.
    """
    store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    name = _name_group(store, rank, size, timeout)
    prefixed = dist.PrefixStore(f"equipoise/{name}", store)  # type: ignore[attr-defined]  # not in __all__
    dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    atexit.register(_leave_process_group)


def _name_group(store: Any, rank: int, size: int, timeout: float) -> str:
    """Agree on a name that no earlier attempt has used. torchrun counts restarts on each machine by itself.

    Rank 0 writes a random name. The others answer under this name, each with a random word, and rank 0 confirms these
    words. So a rank that reads the name of an earlier attempt finds no confirmation of its word, and reads again.

    Args:
        store: the store of all ranks.
        rank: of this process.
        size: number of ranks.
        timeout: seconds to wait for the others.

    Returns:
        The name, the same on every rank.

    Raises:
        RuntimeError: if a rank does not answer in time.
    """
    word = uuid4().hex
    if rank == 0:
        store.set(NAME_KEY, word)
        store.set(f"{NAME_KEY}/{word}", " ".join(_read(store, f"{NAME_KEY}/{word}/{r}", r) for r in range(1, size)))
        return word
    end, name = time.monotonic() + timeout, ""
    while time.monotonic() < end:
        current = _read(store, NAME_KEY, 0)
        if current != name:
            name = current
            store.set(f"{NAME_KEY}/{name}/{rank}", word)
        confirmation = f"{NAME_KEY}/{name}"
        if store.check([confirmation]) and word in _read(store, confirmation, 0).split():
            return name
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"rank 0 did not answer within {timeout:g} s")


def _read(store: Any, key: str, writer: int) -> str:
    """Wait for a value that another rank writes."""
    try:
        return str(store.get(key).decode())
    except RuntimeError as error:
        raise RuntimeError(f"no answer of rank {writer}: {error}") from error


def _leave_process_group() -> None:
    """End the threads of gloo before the interpreter ends: otherwise a rank may abort after its last line.

    Not if another rank is lost: gloo would wait for it.
    """
    if dist.is_initialized() and not _LOST_RANKS:
        dist.destroy_process_group()


def _check_size(processes: int, parts: int) -> None:
    if processes != parts:
        raise DistributedError(
            f"the graph has {parts} part{'s' * (parts != 1)}, but {processes} processes were started",
            remedy=f"start {parts} processes (torchrun --nnodes × --nproc-per-node), or partition again with "
            f"--parts {processes}",
        )


def _choose_interface(address: str) -> None:
    """Name the interface that leads to an address: by default gloo takes the one that the host name resolves to."""
    if INTERFACE_VARIABLE in os.environ:
        return
    try:
        import fcntl  # noqa: PLC0415 - not on Windows, where gloo's default stays

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing: UDP only chooses a route
            local = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode())
                try:
                    reply = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR: address of an interface
                except OSError:
                    continue  # an interface without an IPv4 address
                if socket.inet_ntoa(reply[20:24]) == local:
                    os.environ[INTERFACE_VARIABLE] = name
                    return
    except (ImportError, OSError):
        return  # gloo's default


@contextmanager
def connection_errors() -> Iterator[None]:
    """Turn an error of a collective operation into a :class:`DistributedError` that says what happened."""
    try:
        yield
    except RuntimeError as error:
        _LOST_RANKS.append(error)
        rank = f"rank {dist.get_rank()}: " if dist.is_initialized() else ""
        timeout = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        what = "another rank did not answer in time" if timeout else "the connection to another rank is lost"
        raise DistributedError(
            f"{rank}{what}",
            where=_gloo_reason(error),
            remedy="the rank that ended first reports the cause; torchrun --max-restarts 3 continues from the last "
            "checkpoint" + ("; a larger --timeout waits longer" if timeout else ""),
        ) from error


def _gloo_reason(error: RuntimeError) -> str:
    """The first sentence of gloo's message, without the place in its sources."""
    return re.sub(r"^\[[^\]]*\]\s*", "", str(error)).split(". ")[0].splitlines()[0]


def sum_tensor_(tensor: Tensor) -> Tensor:
    """Sum a tensor over all ranks, in place: the same bits on every rank, and in every run of as many ranks.

    gloo adds each block of the tensor in a fixed order of ranks and sends the result to all.

    Args:
        tensor: contiguous, of the same shape on every rank.

    Returns:
        The same tensor.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        with connection_errors():
            dist.all_reduce(tensor)
    return tensor


def all_agree(condition: bool) -> bool:
    """Whether a condition holds on every rank; the answer is the same on all of them."""
    return not int(sum_tensor_(torch.tensor([0 if condition else 1])))


def gather_objects(value: object) -> list[object]:
    """Values of all ranks, in their order, on every rank; small picklable objects."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values: list[object] = [None] * dist.get_world_size()
    with connection_errors():
        dist.all_gather_object(values, value)
    return values


def broadcast_object(value: object) -> object:
    """The value of rank 0, on every rank; a picklable object."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    values = [value]
    with connection_errors():
        dist.broadcast_object_list(values, src=0)
    return values[0]


@contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """Raise an error of one rank on all of them, so that none waits for a rank that has failed.

    Every rank must enter this block. The exchange of errors happens at its end.

    Raises:
        DistributedError: if another rank failed; the rank that failed raises its own error.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    reports = gather_objects(None if failure is None else str(failure))
    if failure is not None:
        raise failure
    for rank, report in enumerate(reports):
        if report is not None:
            raise DistributedError(f"rank {rank} failed: {report}")
