"""Real processes that form a process group: each calls the same function and returns its result."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Processes fork from a server that has imported the libraries, so that a group starts in a fraction of a second.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "torch_geometric", "equipoise.nn.stack", "equipoise.training.loop"])


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> list[Any]:
    """Call ``function(rank, world_size, *arguments)`` in a group of processes and return the results in order.

    The result of a process that was killed is None. ``timeout`` is that of the group, in seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            CONTEXT.Process(target=_work, args=(Path(folder), rank, world_size, function, arguments, timeout))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        files = [Path(folder) / f"{rank}.pt" for rank in range(world_size)]
        results = [torch.load(file, weights_only=False) if file.exists() else None for file in files]
    failures = [result.text for result in results if isinstance(result, Failure)]
    assert not failures, "\n".join(failures)
    return results


class Failure:
    """The traceback of a rank."""

    def __init__(self, text: str) -> None:
        self.text = text


def _work(
    folder: Path, rank: int, world_size: int, function: Callable[..., Any], arguments: Any, timeout: float
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
    )
    try:
        result = function(rank, world_size, *arguments)
    except BaseException:
        result = Failure(f"rank {rank}: {traceback.format_exc()}")
    torch.save(result, folder / f"{rank}.pt")
    os._exit(0)  # without the end of the group, which a rank that lost another may wait for
