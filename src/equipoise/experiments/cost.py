"""The cost of a run: a relative estimate from its settings, and one in seconds from a calibration on this machine.

The time of an epoch is about linear in four numbers (:func:`epoch_operations`). The relative estimate uses fixed
factors, the calibration fits them to a few epochs of small networks. Only :func:`calibrate` imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from equipoise.data.catalog import dataset_info
from equipoise.experiments.spec import RunSpec

if TYPE_CHECKING:
    from torch_geometric.data import Data

# Approximate relative times per operation, accurate enough to start the long runs first.
RELATIVE_COSTS = (1e5, 0.05, 0.5, 1.0)

SECONDS_PER_COST = 1e-9  # order of magnitude on a current core: 27 ms for an epoch of 10 layers on Cora

CostFactors = Mapping[str, NDArray[np.float64]]  # kind of layer → seconds per operation of each type

PROCESS_MEMORY = 500e6  # bytes of a process that has imported torch and PyG and loaded a small graph
MOMENTS = {"sgd": 0, "rmsprop": 1, "adagrad": 1}  # tensors that an optimizer keeps per parameter; others keep two
INPUT_COPIES = 4  # arrays of the size of the dense input features that exist while a data set is loaded

FEATURE_DENSITY = 0.01  # fraction of non-zero features, about that of citation graphs
TIMED_EPOCHS = 5  # epochs timed per network, after a first one to warm up


class GraphSize(Protocol):
    """The sizes of a graph; :class:`~equipoise.data.catalog.DatasetInfo` has them."""

    @property
    def nodes(self) -> int: ...
    @property
    def edges(self) -> int: ...
    @property
    def features(self) -> int: ...
    @property
    def classes(self) -> int: ...


def epoch_operations(spec: RunSpec, graph: GraphSize | None = None) -> tuple[float, float, float, float]:
    """Count the operations of an epoch.

    Args:
        spec: the run.
        graph: sizes of the graph; by default those of the run's data set.

    Returns:
        Numbers of layers, of multiplications in dense products, of node features written, and of features sent along
        edges.

    Example:
        >>> epoch_operations(RunSpec(dataset="cora", depth=2, lr=0.1))
        (2.0, 249569280.0, 192268.0, 941744.0)
    """
    graph = graph or dataset_info(spec.dataset)
    hidden_inputs = spec.width * (spec.heads if spec.concat else 1)
    inputs = [graph.features, *[hidden_inputs] * (spec.depth - 1)]
    outputs = [spec.width * spec.heads] * (spec.depth - 1) + [graph.classes * spec.out_heads]
    matrices = 4 if spec.kind == "transformer" else 1 if spec.share_weights else 2
    weights = sum(i * o for i, o in zip(inputs, outputs, strict=True))
    edges = graph.edges * (2 if spec.undirected else 1) + graph.nodes  # one self-loop per node
    counts = (spec.depth, graph.nodes * matrices * weights, graph.nodes * sum(outputs), edges * sum(outputs))
    layers, products, features, messages = map(float, counts)
    return layers, products, features, messages


def estimate_memory(spec: RunSpec, graph: GraphSize | None = None) -> float:
    """Estimate the largest memory of a process that executes this run; real runs need about this much or more.

    Counted are Python with torch, the input features, the weights with their gradients, the best weights and the
    optimizer's moments, and the features of every layer.

    Args:
        spec: the run.
        graph: sizes of the graph; by default those of the run's data set.

    Returns:
        Bytes.

    Example:
        >>> round(estimate_memory(RunSpec(dataset="cora", depth=10, lr=0.1)) / 1e6)
        570
    """
    graph = graph or dataset_info(spec.dataset)
    _, products, features, _ = epoch_operations(spec, graph)
    copies = 3 + MOMENTS.get(spec.optimizer, 2)
    inputs = INPUT_COPIES * graph.nodes * graph.features
    return PROCESS_MEMORY + 4 * (inputs + copies * products / graph.nodes + features)


def relative_cost(spec: RunSpec) -> float:
    """Estimate the cost of a whole run in arbitrary units.

    Args:
        spec: the run.

    Returns:
        A number that is comparable between runs.

    Example:
        >>> cora, texas = (RunSpec(dataset=name, depth=20, lr=0.1) for name in ("cora", "texas"))
        >>> relative_cost(cora) > 5 * relative_cost(texas)
        True
    """
    operations = zip(RELATIVE_COSTS, epoch_operations(spec), strict=True)
    return spec.epochs * sum(cost * count for cost, count in operations)


def rough_seconds(spec: RunSpec) -> float:
    """Estimate the duration of a run on one core of a current processor without a calibration, within a factor of ten.

    Args:
        spec: the run.

    Returns:
        Seconds, if the run needs all its epochs.

    Example:
        >>> 60 < rough_seconds(RunSpec(dataset="cora", depth=10, lr=0.1, epochs=5000)) < 600
        True
    """
    return SECONDS_PER_COST * relative_cost(spec)


def estimate_seconds(spec: RunSpec, factors: CostFactors) -> float:
    """Estimate the duration of a run that needs all its epochs; a run that converges takes less."""
    return spec.epochs * float(np.dot(epoch_operations(spec), factors[spec.kind]))


@dataclass(frozen=True)
class CalibrationNetwork:
    """Sizes of a network and of the random graph that it is timed on."""

    nodes: int
    edges: int
    features: int
    depth: int
    width: int = 64
    classes: int = 7


# Each type of operation dominates in one of them and is negligible in another.
CALIBRATION_NETWORKS = (
    CalibrationNetwork(200, 300, 64, depth=12),
    CalibrationNetwork(200, 300, 1700, depth=2),
    CalibrationNetwork(2500, 2500, 1500, depth=2),
    CalibrationNetwork(2500, 10000, 64, depth=4),
    CalibrationNetwork(2500, 50000, 64, depth=2),
    CalibrationNetwork(2500, 5000, 64, depth=2, width=256),
)


def calibrate(kinds: Iterable[str]) -> CostFactors:
    """Time small networks of each kind on one thread, and fit the time of an epoch.

    The fit minimises relative errors, so that short epochs count as much as long ones.

    Args:
        kinds: kinds of layers.

    Returns:
        Seconds per operation by kind.
    """
    from scipy.optimize import nnls  # noqa: PLC0415 - slow to import

    factors = {}
    with _single_thread():
        for kind in kinds:
            specs = [_spec(kind, sizes) for sizes in CALIBRATION_NETWORKS]
            pairs = list(zip(specs, CALIBRATION_NETWORKS, strict=True))
            counts = np.array([epoch_operations(spec, sizes) for spec, sizes in pairs])
            seconds = np.array([_time_epoch(spec, sizes) for spec, sizes in pairs])
            factors[kind] = nnls(counts / seconds[:, None], np.ones(len(seconds)))[0]
    return factors


def _spec(kind: Any, sizes: CalibrationNetwork) -> RunSpec:
    return RunSpec(dataset="synthetic-citation", kind=kind, depth=sizes.depth, width=sizes.width, lr=1e-3)


def _time_epoch(spec: RunSpec, sizes: CalibrationNetwork) -> float:
    """Return the median duration of an epoch."""
    from equipoise.experiments.run import build_network  # noqa: PLC0415 - imports torch
    from equipoise.training.loop import train  # noqa: PLC0415 - imports torch

    data, timestamps = _random_data(sizes), list[float]()
    model = build_network(spec, data)
    train(model, data, lr=spec.lr, epochs=TIMED_EPOCHS + 1, on_epoch=lambda *_: timestamps.append(time.perf_counter()))
    return float(np.median(np.diff(timestamps)))


def _random_data(sizes: CalibrationNetwork) -> Data:
    import torch  # noqa: PLC0415 - slow to import
    from torch_geometric.data import Data  # noqa: PLC0415 - slow to import

    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(sizes.nodes, dtype=torch.bool)
    return Data(
        x=(torch.rand(sizes.nodes, sizes.features, generator=generator) < FEATURE_DENSITY).float(),
        y=torch.randint(sizes.classes, (sizes.nodes,), generator=generator),
        edge_index=torch.randint(sizes.nodes, (2, sizes.edges), generator=generator),
        train_mask=mask,
        val_mask=mask,
        test_mask=mask,
        classes=sizes.classes,
    )


@contextmanager
def _single_thread() -> Iterator[None]:
    import torch  # noqa: PLC0415 - slow to import

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
