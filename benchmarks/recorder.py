"""What it costs to watch: the share of training time that a recorder takes, at every epoch and at every 25th.

Run it as ``python benchmarks/recorder.py [DATASET] [LAYERS]``. One thread. Every record is timed inside the run that it
belongs to, so that epochs and records alternate and share whatever else the machine does; medians are compared.
"""

import statistics
import sys
import time
from itertools import pairwise

import torch

import equipoise as eq
from equipoise.train.recorder import DEFAULT, GROUPS

EPOCHS = 60


def main(dataset: str = "cora", layers: int = 10) -> None:
    """Print milliseconds of an epoch and of a record, and the shares, by default, for all groups and for each alone."""
    torch.set_num_threads(1)
    data = eq.load_dataset(dataset)
    model = eq.Stack("gatv2", [data.num_features, *[64] * (layers - 1), data.classes])
    eq.initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0))
    laws = eq.discover(model, torch.rand(24, data.num_features), torch.randint(0, 24, (2, 72)))
    for groups in (DEFAULT, GROUPS, *((group,) for group in GROUPS)):
        epoch, record = measured(model, laws, data, groups)
        name = {DEFAULT: "by default", GROUPS: "all"}.get(groups, groups[0])
        share = record / epoch
        print(
            f"{name:<15} {record:6.2f} ms a record, {epoch:6.1f} ms an epoch without: "
            f"{share:6.1%} every epoch, {share / 25:6.2%} every 25th"
        )


class Timed(eq.Recorder):
    """Remembers how long it took, before the step and after it."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.spent, self.begun = [], []

    def step(self, epoch: int, **scalars: float) -> None:
        self.begun.append(time.perf_counter())
        super().step(epoch, **scalars)
        self.spent.append(time.perf_counter() - self.begun[-1])

    def _complete(self) -> None:
        start = time.perf_counter()
        waiting = self._pending is not None
        super()._complete()
        if waiting:
            self.spent[-1] += time.perf_counter() - start


def measured(model: torch.nn.Module, laws: list[eq.Law], data, groups: tuple[str, ...]) -> tuple[float, float]:
    """Milliseconds of an epoch without its record, and of the record."""
    record = Timed(model, laws, every=1, quantities=groups)
    eq.train(model, data, lr=1e-3, epochs=EPOCHS, record=record)
    whole = [later - earlier for earlier, later in pairwise(record.begun)]
    alone = [epoch - spent for epoch, spent in zip(whole, record.spent, strict=False)]
    return 1000 * statistics.median(alone), 1000 * statistics.median(record.spent)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
