"""Labels of loaders, read from the data behind them, so that bad ones are found before the first step.

A loader is not iterated for this: sampling costs time, and random sampling would change the random state. Its data set
or graph is read instead. Labels of any other iterable are checked batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, SubsetRandomSampler
from torch_geometric.data import Data, InMemoryDataset

from equipoise.errors import TrainingError
from equipoise.training.task import check_targets, get_targets, select_rows

MAX_SAMPLES = 10_000  # per split; a data set of graphs takes about 0.6 s to read up to here


def check_loader(loader: Any, split: str) -> None:
    """Raise :class:`TrainingError` unless the loader can be iterated once per epoch."""
    remedy = "pass a DataLoader, or a list of graphs or batches"
    if isinstance(loader, Data) or not isinstance(loader, Iterable):
        raise TrainingError(f"the loader {split} is of type {type(loader).__name__}", remedy=remedy)
    if isinstance(loader, Iterator):
        raise TrainingError(f"the loader {split} is an iterator, which ends after one epoch", remedy=remedy)


def read_targets(loader: Any, split: str) -> Tensor | None:
    """Read and check the targets of a loader, as far as this is possible without the model.

    Args:
        loader: a torch or PyG loader, or a list of graphs or batches.
        split: name of the split.

    Returns:
        The targets, as far as they were read; None if the data behind the loader are not known.

    Raises:
        TrainingError: if a target is missing, NaN or negative, or if its shape differs from that of the first.
    """
    graph, seeds = getattr(loader, "data", None), getattr(getattr(loader, "input_data", None), "node", None)
    if isinstance(graph, Data) and isinstance(seeds, Tensor):  # of a neighbour loader
        targets = get_targets(graph)[seeds]
    else:
        samples = _samples(loader)
        if not samples:
            return None
        rows = [select_rows(sample, split, _sample_targets(sample))[0] for sample in samples]
        per_graph = isinstance(loader, DataLoader) and len(rows[0]) == 1
        for number, (sample, row) in enumerate(zip(samples, rows, strict=True)):
            fits = row.shape[1:] == rows[0].shape[1:]
            if not fits or (per_graph and len(row) not in (1, sample.num_nodes)):
                raise TrainingError(
                    f"the targets of graph {number} have the shape {tuple(row.shape)}, those of the first graph "
                    f"{tuple(rows[0].shape)}",
                    where=f"{split}: {sample!r}",
                    remedy="all graphs need one target each, or one target per node",
                )
        targets = torch.cat(rows)
    check_targets(targets, split)
    return targets


def _sample_targets(sample: Any) -> Tensor:
    """The targets of a graph or batch; a scalar as a vector, as in a batch."""
    targets = get_targets(sample)
    return targets.view(1) if targets.dim() == 0 else targets


def _samples(loader: Any) -> list[Any]:
    """The graphs or batches behind a loader; none if they are not in memory."""
    if isinstance(loader, list | tuple):
        return list(loader[:MAX_SAMPLES])
    if not isinstance(loader, DataLoader):
        return []
    if loader.batch_sampler is not None and getattr(loader.batch_sampler, "sampler", None) is not loader.sampler:
        return []  # a batch sampler of the user's: it may skip graphs
    if isinstance(loader.sampler, SubsetRandomSampler):
        return _graphs(Subset(loader.dataset, loader.sampler.indices))
    return _graphs(loader.dataset) if isinstance(loader.sampler, RandomSampler | SequentialSampler) else []


def _graphs(dataset: Any, indices: Sequence[int] | None = None) -> list[Any]:
    """The first graphs of a data set that is in memory."""
    if isinstance(dataset, Subset):
        chosen = dataset.indices if indices is None else [dataset.indices[index] for index in indices]
        return _graphs(dataset.dataset, chosen)
    in_memory = isinstance(dataset, InMemoryDataset) and dataset.transform is None
    if not in_memory and not isinstance(dataset, list | tuple):
        return []
    graphs = [dataset[int(index)] for index in islice(range(len(dataset)) if indices is None else indices, MAX_SAMPLES)]
    return graphs if all(isinstance(graph, Data) for graph in graphs) else []
