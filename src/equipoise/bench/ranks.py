"""Training on parts of a graph with several ranks of one thread each: time, memory per rank, bytes exchanged.

The measuring process partitions the graph and starts torchrun; every rank runs this module and writes a JSON file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from equipoise.bench.cases import Case
from equipoise.errors import MeasurementError

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from equipoise.distributed.parts.part import Part

WARMUP_EPOCHS = 2


@dataclass(frozen=True)
class RankRun:
    """Epochs of one network on one graph with a number of ranks.

    Attributes:
        case: Name of the case.
        ranks: Number of ranks, each of one thread.
        milliseconds: Median time per epoch, of the slowest rank.
        peaks: Peak memory of each rank in bytes, beyond that of a process that has imported the libraries.
        bytes_sent: Bytes of boundary rows that all ranks send per epoch, both directions.
    """

    case: str
    ranks: int
    milliseconds: float
    peaks: list[int]
    bytes_sent: int


def measure_ranks(case: Case, ranks: int, environment: Mapping[str, str] | None = None) -> RankRun:
    """Partition the graph of a case and measure its training, in new processes.

    Args:
        case: The case.
        ranks: Number of ranks.
        environment: Additional environment variables.

    Returns:
        The measurement.

    Raises:
        MeasurementError: If a rank fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "case.json").write_text(json.dumps(asdict(case)))
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        module = ("-m", __name__, folder)
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
        for command in ((*module, str(ranks)), (*launcher, *module)):
            process = subprocess.run(
                [sys.executable, *command], capture_output=True, text=True, check=False, env=variables
            )
            if process.returncode:
                lines = [line for line in process.stderr.splitlines() if "Error" in line] or ["no message"]
                raise MeasurementError(f"{case.name} with {ranks} ranks: {lines[0].strip()}")
        results = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
    return RankRun(
        case.name,
        ranks,
        max(result["milliseconds"] for result in results),
        [result["peak"] for result in results],
        sum(result["bytes_sent"] for result in results),
    )


def write_parts(folder: Path, case: Case, ranks: int) -> None:
    """Partition the graph of a case, and a small one for the warm-up."""
    from equipoise.bench.cases import load_graph, random_graph
    from equipoise.distributed.parts.partition import partition

    partition(load_graph(case), ranks, folder / "parts")
    partition(random_graph(64, 256, 8), ranks, folder / "warm-up")


def measure_rank(folder: Path, case: Case) -> dict[str, Any]:
    """Train on the part of this rank.

    Args:
        folder: The folder with ``parts``.
        case: The case.

    Returns:
        Milliseconds per epoch, peak memory and bytes sent per epoch of this rank.
    """
    import torch
    import torch.nn.functional as F

    from equipoise.bench.competitors import LEARNING_RATE, build_stack
    from equipoise.bench.timing import intervals, peak_memory, reset_peak_memory
    from equipoise.distributed.gradients import sum_gradients, sum_over_ranks
    from equipoise.distributed.graph import DistributedGraph
    from equipoise.distributed.parts.loading import load_part
    from equipoise.distributed.process_group import sum_tensor_
    from equipoise.kernels.denormals import flush_denormals
    from equipoise.training.loop import train
    from equipoise.training.sources import select_features

    torch.set_num_threads(1)
    small = load_part(folder / "warm-up")  # compilation, imports and connections are not counted
    train(build_stack(case, _sizes(small)), small, lr=LEARNING_RATE, epochs=1, timeout=600)
    reset_peak_memory()
    before = peak_memory()
    part = load_part(folder / "parts")
    model = build_stack(case, _sizes(part))
    assert part.train_mask is not None  # the graphs of all cases have masks and classes
    assert part.y is not None
    rank, graph = part.rank, DistributedGraph(part, timeout=600)
    edge_index = graph if part.parts > 1 else part.edge_index
    x, nodes = select_features(model, part.x), part.train_mask.nonzero().view(-1)
    targets, total = part.y[nodes], int(sum_tensor_(torch.tensor([len(nodes)])))
    del part  # its features are mapped from a file
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    stamps = []
    with flush_denormals():
        for _ in range(WARMUP_EPOCHS + case.epochs * case.rounds):
            stamps.append(time.perf_counter())
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, edge_index).index_select(0, nodes), targets, reduction="sum")
            sum_over_ranks(loss / total).backward()  # type: ignore[no-untyped-call]
            sum_gradients(model)
            optimizer.step()
    stamps.append(time.perf_counter())
    return {
        "milliseconds": median(intervals(stamps)[WARMUP_EPOCHS:]),
        "peak": peak_memory() - before,
        "bytes_sent": graph.exchange.bytes_sent // (len(stamps) - 1),
        "rank": rank,
    }


def _sizes(part: Part) -> Data:
    """A graph with the numbers of features and classes of a part."""
    import torch
    from torch_geometric.data import Data

    return Data(x=torch.empty(1, part.manifest.num_features), classes=part.manifest.num_classes)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    measured = Case(**json.loads((where / "case.json").read_text()))
    if len(sys.argv) > 2:
        write_parts(where, measured, int(sys.argv[2]))
    else:
        result = measure_rank(where, measured)
        (where / f"{result['rank']}.json").write_text(json.dumps(result))
