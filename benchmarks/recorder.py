"""What it costs to watch: the share of training time that a recorder takes, at every epoch and at every 25th.

Run it as ``python benchmarks/recorder.py [DATASET] [LAYERS]``. One thread. Every fourth epoch of a run is recorded.
Hooks are on from the evaluation before it, so these two epochs, whole, are compared with the two that follow: both
pairs share whatever else the machine does. The cost of a record is the median of the differences.
"""

import statistics
import sys
import time
from itertools import pairwise

import torch

import equipoise as eq
from equipoise.train.recorder import GROUPS

EPOCHS = 400


def main(dataset: str = "cora", layers: int = 10) -> None:
    """Print milliseconds of an epoch and of a record, and the shares: of everything, of nothing, and of each group."""
    torch.set_num_threads(1)
    data = eq.load_dataset(dataset)
    model = eq.Stack("gatv2", [data.num_features, *[64] * (layers - 1), data.classes])
    eq.initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0))
    laws = eq.discover(model, torch.rand(24, data.num_features), torch.randint(0, 24, (2, 72)))
    for name, groups in {"everything": GROUPS, "nothing": (), **{group: (group,) for group in GROUPS}}.items():
        epoch, record = measured(model, laws, data, groups)
        share = record / epoch
        print(
            f"{name:<15} {record:6.2f} ms a record, {epoch:6.1f} ms an epoch without: "
            f"{share:6.1%} every epoch, {share / 25:6.2%} every 25th"
        )


def measured(model: torch.nn.Module, laws: list[eq.Law], data, groups: tuple[str, ...]) -> tuple[float, float]:
    """Milliseconds of an epoch without a record, and what a record adds to it."""
    ends: list[float] = []
    record = eq.Recorder(model, laws, every=4, quantities=groups)
    eq.train(model, data, lr=1e-3, epochs=EPOCHS, record=record, on_epoch=lambda *_: ends.append(time.perf_counter()))
    spent = [1000 * (later - earlier) for earlier, later in pairwise(ends)][1:]  # of epochs 3, 4, 5, 6, …
    fours = list(zip(spent[0::4], spent[1::4], spent[2::4], spent[3::4], strict=False))
    return statistics.median(d for _, _, *after in fours for d in after), statistics.median(
        a + b - c - d for a, b, c, d in fours
    )


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
