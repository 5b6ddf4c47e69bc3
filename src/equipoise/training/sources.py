"""Where the steps of an epoch come from: one graph, full batch, or loaders of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from equipoise.errors import TrainingError
from equipoise.laws.validation import describe_value
from equipoise.nn.sparse_linear import to_csr_tensor
from equipoise.nn.stack import Stack
from equipoise.training.labels import check_loader, read_targets
from equipoise.training.metrics import Metric, has_one_score_per_target
from equipoise.training.task import (
    SPLITS,
    Loss,
    check_classes,
    check_rows,
    check_targets,
    custom_loss,
    default_loss,
    get_targets,
    model_caller,
    select_rows,
    takes_data,
    warn_of_one_hot,
)

MAX_SPARSE_DENSITY = 0.2  # fraction of non-zero entries above which a dense product is faster


class FullBatch:
    """One graph: one step per epoch, on the nodes of ``train_mask``.

    The methods below ``evaluate`` are what differs where several processes train on one graph:
    :class:`~equipoise.training.part_source.PartSource` replaces them by sums over ranks.

    Args:
        model: the model.
        data: a graph with ``y``, ``train_mask``, ``val_mask`` and ``test_mask``.
        metric: metric of scores and targets.
        loss: function of model and data; None for the default loss of the training nodes.
        sparse_features: see :func:`~equipoise.train`.

    Raises:
        TrainingError: if the data lack a tensor, or a label is invalid.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        metric: Metric,
        loss: Loss | None = None,
        sparse_features: bool | None = None,
    ) -> None:
        with self._errors():
            check_graph(model, data)
        self.model, self.data, self.metric, self.loss = model, data, metric, loss
        targets = get_targets(data)
        self.nodes = {split: data[f"{split}_mask"].nonzero().view(-1) for split in SPLITS}
        self.targets = {split: targets[indices] for split, indices in self.nodes.items()}
        self._check_targets()
        call = model_caller(model)
        x = None if takes_data(model) else select_features(model, data.x, sparse_features)
        self.forward = ForwardPasses(model, lambda: call(data, x), agree=self._agree)
        self._checked = loss is not None

    def losses(self) -> Iterator[tuple[Tensor, int]]:
        """Yield the loss of the epoch's step, and the number 1."""
        if self.loss is not None:
            self.model.train()
            yield self._sum(custom_loss(self.loss, self.model, self.data)), 1
            return
        scores = self.forward.train()
        if not self._checked:
            with self._errors():
                check_rows(scores, self.data.y, repr(self.data))
                for split, nodes in self.nodes.items():
                    if len(nodes):
                        check_targets(self.targets[split], split, scores.detach().index_select(0, nodes))
            warn_of_one_hot(self.targets["train"])
            self._checked = True
        yield self._default_loss(scores.index_select(0, self.nodes["train"])), 1

    def evaluate(self) -> tuple[float, float]:
        """Return the metric of the validation and of the test nodes."""
        # The graph of an evaluation can serve the next step only if the loss is a function of the same scores.
        scores = self.forward.evaluate() if self.loss is None else self.forward.evaluate_only()
        val, test = self._metrics({split: scores.index_select(0, self.nodes[split]) for split in SPLITS[1:]})
        return val, test

    def _errors(self) -> AbstractContextManager[None]:
        """Context of checks."""
        return nullcontext()

    def _agree(self, decision: bool) -> bool:
        """A decision of all processes."""
        return decision

    def _sum(self, share: Tensor) -> Tensor:
        """The loss, from this process's share."""
        return share

    def _check_targets(self) -> None:
        """Check that there are targets, and what does not depend on the model."""
        if self.loss is None:
            for split in SPLITS:
                check_targets(self.targets[split], split)

    def _default_loss(self, scores: Tensor) -> Tensor:
        """Mean loss of the training nodes."""
        return default_loss(scores, self.targets["train"])

    def _metrics(self, scores: Mapping[str, Tensor]) -> Iterable[float]:
        """The metric of each split."""
        return [self.metric(rows, self.targets[split]) for split, rows in scores.items()]


class Loaders:
    """Loaders of batches: one step per batch of ``loaders["train"]``.

    Args:
        model: the model.
        loaders: iterables of PyG batches, named ``train``, ``val`` and ``test``.
        metric: metric of all scores and targets of a split.
        loss: function of model and batch; None for the default loss of the batch.
        splits: the loaders that are required.

    Raises:
        TrainingError: if a loader is missing, is an iterator, or has invalid labels.
    """

    def __init__(
        self,
        model: nn.Module,
        loaders: Mapping[str, Iterable[Any]],
        metric: Metric,
        loss: Loss | None = None,
        splits: Sequence[str] = SPLITS,
    ) -> None:
        if missing := [split for split in splits if split not in loaders]:
            raise TrainingError(
                f"there is no loader {', '.join(missing)}", remedy="pass loaders as {'train': …, 'val': …, 'test': …}"
            )
        for split in splits:
            check_loader(loaders[split], split)
        self.model, self.loaders, self.metric, self.loss = model, loaders, metric, loss
        self._call = model_caller(model)
        targets = {} if loss is not None else {split: read_targets(loaders[split], split) for split in splits}
        self._unchecked = {split: rows for split, rows in targets.items() if rows is not None}

    def losses(self) -> Iterator[tuple[Tensor, int]]:
        """Yield the loss of every training batch, and the number of its targets."""
        for batch in self.loaders["train"]:
            self.model.train()
            yield self.batch_loss(batch)

    def batch_loss(self, batch: Any) -> tuple[Tensor, int]:
        """Return the loss of a training batch, and the number of its targets."""
        if self.loss is not None:
            return custom_loss(self.loss, self.model, batch), 1
        scores, targets = self.scores(batch, "train")
        one_score = has_one_score_per_target(scores, targets)
        for split, rows in self._unchecked.items():  # before the first step
            check_classes(rows, split, scores, one_score)
            if split == "train":
                warn_of_one_hot(rows)
        self._unchecked = {}
        return default_loss(scores, targets), len(targets)

    def evaluate(self) -> tuple[float, float]:
        """Return the metric over all validation batches and over all test batches."""
        return self.evaluate_split("val"), self.evaluate_split("test")

    @torch.no_grad()
    def evaluate_split(self, split: str) -> float:
        """Return the metric over all batches of a split."""
        self.model.eval()
        pairs = [self.scores(batch, split) for batch in self.loaders[split]]
        if not pairs:
            raise TrainingError(f"the loader {split} has no batch")
        return self.metric(*(torch.cat(parts) for parts in zip(*pairs, strict=True)))

    def scores(self, batch: Any, split: str) -> tuple[Tensor, Tensor]:
        """Return the scores of the rows of a batch that count, and their targets."""
        scores, targets = select_rows(batch, split, self._call(batch, None), get_targets(batch))
        if self.loss is None:
            check_targets(targets, split, scores.detach())
        return scores, targets


class ForwardPasses:
    """Forward passes of a training run, with one pass for evaluation and next step where both modes agree.

    The training pass of an epoch has the weights of the preceding evaluation. The first such pair decides whether the
    modes agree. Equal scores alone do not suffice: those of a network with dead neurons may differ later. So the pass
    must also draw no random numbers and change no buffer. A resumed run comes to the same decision.

    Args:
        model: the model.
        call: calls it and returns its scores.
        agree: makes the decision one of all ranks, where several train together.

    Attributes:
        modes_agree: whether one pass serves both purposes; None before the first pair of passes.
    """

    def __init__(
        self, model: nn.Module, call: Callable[[], Tensor], agree: Callable[[bool], bool] = lambda decision: decision
    ) -> None:
        self.model, self.call, self.agree = model, call, agree
        self.modes_agree: bool | None = None
        self._evaluation: Tensor | None = None  # scores of the first evaluation, until they are compared
        self._next: Tensor | None = None  # scores for the next step, with their autograd graph

    def train(self) -> Tensor:
        """Return scores in training mode, with gradients enabled."""
        if self._next is not None:
            scores, self._next = self._next, None
            return scores
        if self._evaluation is None:
            return self._call(training=True)
        rng_state = torch.get_rng_state()
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        scores = self._call(training=True)
        self.modes_agree = self.agree(
            torch.equal(scores.detach(), self._evaluation)
            and torch.equal(torch.get_rng_state(), rng_state)
            and all(torch.equal(buffer, buffers[name]) for name, buffer in self.model.named_buffers())
        )
        self._evaluation = None
        return scores

    def evaluate(self) -> Tensor:
        """Return scores of evaluation mode, without gradients."""
        if self.modes_agree:
            self._next = self._call(training=True)
            return self._next.detach()
        scores = self._call(training=False)
        if self.modes_agree is None:
            self._evaluation = scores
        return scores

    def _call(self, training: bool) -> Tensor:
        if self.model.training != training:
            self.model.train(training)
        with torch.set_grad_enabled(training):
            return self.call()

    def evaluate_only(self) -> Tensor:
        """Return scores of evaluation mode, without gradients, that no training pass will use."""
        return self._call(training=False)


def select_features(model: nn.Module, x: Tensor, sparse: bool | None = None) -> Tensor:
    """Return the features as a sparse CSR tensor or unchanged; see ``sparse_features`` of :func:`train`."""
    is_plain = type(x) in {Tensor, nn.Parameter} and not (x.is_nested or x.is_quantized)
    if x.layout != torch.strided or x.dim() != 2 or not is_plain:
        return x
    if sparse is None:
        sparse = (
            isinstance(model, Stack)
            and x.is_floating_point()
            and int(x.count_nonzero()) <= MAX_SPARSE_DENSITY * x.numel()
        )
    return to_csr_tensor(x) if sparse else x


def check_graph(model: nn.Module, data: Data) -> None:
    """Raise :class:`TrainingError` if a graph lacks what full-batch training needs."""
    if isinstance(data, DataLoader | list | tuple):
        raise TrainingError(
            f"expected a graph, got a {type(data).__name__}",
            remedy="pass loaders as {'train': …, 'val': …, 'test': …}",
        )
    required = (*(() if takes_data(model) else ("x", "edge_index")), "y", *(f"{split}_mask" for split in SPLITS))
    missing = [name for name in required if getattr(data, name, None) is None]
    if missing:
        raise TrainingError(
            f"the data have no {', '.join(missing)}",
            where=repr(data),
            remedy="set these attributes, as in a graph from load_dataset",
        )
    for name in required:
        value = getattr(data, name)
        # A graph may also be a DistributedGraph or a sparse matrix.
        wrong = isinstance(value, list | tuple | np.ndarray) if name == "edge_index" else not isinstance(value, Tensor)
        if wrong:
            raise TrainingError(f"data.{name} is a {type(value).__name__}", remedy="pass a tensor")
        if isinstance(value, Tensor) and value.is_meta:
            raise TrainingError(f"data.{name} is on the device meta", remedy="pass a tensor with values")
    if data.y.dim() == 0:
        raise TrainingError("data.y has no dimension", remedy="pass one target per node")
    for name in (f"{split}_mask" for split in SPLITS):
        mask = getattr(data, name)
        integral = not (mask.is_floating_point() or mask.is_complex())
        if not integral or (mask.numel() and not bool(((mask == 0) | (mask == 1)).all())):
            raise TrainingError(
                f"{name} is {describe_value(mask)} with values other than 0 and 1, expected one boolean per node",
                where=repr(data),
                remedy="torch_geometric.utils.index_to_mask converts indices",
            )
        if mask.dim() != 1:
            raise TrainingError(
                f"{name} has {mask.dim()} dimensions", remedy=f"choose one split: data.{name} = data.{name}[:, 1]"
            )
        if len(mask) != len(data.y):
            raise TrainingError(
                f"{name} has {len(mask)} entries, but there are {len(data.y)} targets",
                where=repr(data),
                remedy="masks have one boolean per node; torch_geometric.utils.index_to_mask converts indices",
            )
