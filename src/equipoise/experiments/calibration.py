"""How fast this machine is: a few epochs of small networks, and from them the time of any run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch_geometric.data import Data

from equipoise.experiments.cost import parts
from equipoise.experiments.run import network
from equipoise.experiments.spec import RunSpec
from equipoise.train.protocol import train

Factors = Mapping[str, NDArray[np.float64]]  # kind of layer → seconds for each of the parts of an epoch

WORDS = 0.01  # of all features, how many a node has: about that of citation graphs
EPOCHS = 5  # of each, after a first one


@dataclass(frozen=True)
class Case:
    """A network on a random graph."""

    nodes: int
    edges: int
    features: int
    depth: int
    width: int = 64
    classes: int = 7


# Each part of an epoch is large in one of them and small in another.
CASES = (
    Case(200, 300, 64, depth=12),
    Case(200, 300, 1700, depth=2),
    Case(2500, 2500, 1500, depth=2),
    Case(2500, 10000, 64, depth=4),
    Case(2500, 50000, 64, depth=2),
    Case(2500, 5000, 64, depth=2, width=256),
)


def calibrate(kinds: Iterable[str]) -> Factors:
    """Time small networks of each kind on one thread, and fit the time of an epoch.

    Relative errors are what is made small, so a short epoch counts as much as a long one.
    """
    factors = {}
    with _one_thread():
        for kind in kinds:
            specs = [_spec(kind, case) for case in CASES]
            amounts = np.array([parts(spec, case) for spec, case in zip(specs, CASES, strict=True)])
            measured = np.array([_epoch(spec, case) for spec, case in zip(specs, CASES, strict=True)])
            factors[kind] = nnls(amounts / measured[:, None], np.ones(len(CASES)))[0]
    return factors


def seconds(spec: RunSpec, factors: Factors) -> float:
    """How long a run takes at most; one that converges is shorter."""
    return spec.epochs * float(np.dot(parts(spec), factors[spec.kind]))


def _spec(kind: str, case: Case) -> RunSpec:
    return RunSpec(dataset="synthetic-citation", kind=kind, depth=case.depth, width=case.width, lr=1e-3)


def _epoch(spec: RunSpec, case: Case) -> float:
    """Seconds of an epoch, the median of a few."""
    data, ends = _graph(case), list[float]()
    model = network(spec, data)
    train(model, data, lr=spec.lr, epochs=EPOCHS + 1, on_epoch=lambda *_: ends.append(time.perf_counter()))
    return float(np.median(np.diff(ends)))


def _graph(case: Case) -> Data:
    draw = torch.Generator().manual_seed(0)
    mask = torch.ones(case.nodes, dtype=torch.bool)
    return Data(
        x=(torch.rand(case.nodes, case.features, generator=draw) < WORDS).float(),
        y=torch.randint(case.classes, (case.nodes,), generator=draw),
        edge_index=torch.randint(case.nodes, (2, case.edges), generator=draw),
        train_mask=mask,
        val_mask=mask,
        test_mask=mask,
        classes=case.classes,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
