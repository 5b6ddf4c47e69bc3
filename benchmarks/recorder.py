"""What it costs to watch: the share of training time that a recorder takes, at every epoch and at every 25th.

Run it as ``python benchmarks/recorder.py [DATASET] [LAYERS]``. One thread, time of the processor; the same network is
trained with and without a recorder in turns, and medians of turns are compared. At every 25th epoch, a record costs what
it costs at every epoch, once in 25.
"""

import statistics
import sys
import time

import torch

import equipoise as eq
from equipoise.train.recorder import GROUPS

TURNS, EPOCHS = 5, 25


def main(dataset: str = "cora", layers: int = 10) -> None:
    """Print milliseconds an epoch and the shares, of all groups and of each alone."""
    torch.set_num_threads(1)
    data = eq.load_dataset(dataset)
    model = eq.Stack("gatv2", [data.num_features, *[64] * (layers - 1), data.classes])
    eq.initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0))
    laws = eq.discover(model, torch.rand(24, data.num_features), torch.randint(0, 24, (2, 72)))
    kinds: dict[str, tuple[str, ...] | None] = {"none": None, "all": GROUPS, **{group: (group,) for group in GROUPS}}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(TURNS):
        for name, groups in kinds.items():
            record = None if groups is None else eq.Recorder(model, laws, every=1, quantities=groups)
            start = time.process_time()
            eq.train(model, data, lr=1e-3, epochs=EPOCHS, record=record)
            times[name].append(1000 * (time.process_time() - start) / EPOCHS)
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    plain = medians.pop("none")
    print(f"{dataset}, {layers} layers: {plain:.1f} ms an epoch without a recorder")
    for name, value in medians.items():
        cost = value - plain
        print(f"  {name:<15} {cost:6.2f} ms a record: {cost / plain:6.1%} every epoch, {cost / plain / 25:6.2%} every 25th")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
