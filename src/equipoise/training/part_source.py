"""One part of a graph as the source of training steps: full-graph training across processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.nn import norm as pyg_norms

from equipoise.distributed.gradients import check_equal_weights, sum_gradients, sum_over_ranks
from equipoise.distributed.graph import DistributedGraph, inner_first
from equipoise.distributed.part import Part
from equipoise.distributed.process_group import TIMEOUT, all_agree, gather_objects, raise_on_all_ranks, sum_tensor_
from equipoise.errors import TrainingError
from equipoise.nn.fused_convs import FUSED_CLASSES
from equipoise.nn.fused_gcn import ResidualGCNConv
from equipoise.nn.lipschitz_gat import LipschitzGATConv
from equipoise.nn.omega_gat import OmegaGATConv
from equipoise.training.metrics import Metric, accuracy, correct_predictions
from equipoise.training.sources import ForwardPasses, check_graph, select_features
from equipoise.training.task import (
    SPLITS,
    Loss,
    check_targets,
    custom_loss,
    default_loss,
    get_targets,
    model_caller,
    takes_data,
)

SUPPORTED_LAYERS = (*FUSED_CLASSES.values(), ResidualGCNConv, OmegaGATConv, LipschitzGATConv)
# Their statistics are taken over nodes: those of one rank are not those of the graph.
NODE_STATISTICS = (
    _BatchNorm,
    pyg_norms.BatchNorm,
    pyg_norms.GraphNorm,
    pyg_norms.GraphSizeNorm,
    pyg_norms.InstanceNorm,
    pyg_norms.MeanSubtractionNorm,
    pyg_norms.PairNorm,
    pyg_norms.DiffGroupNorm,
)


class PartSource:
    """One part of a graph per rank: one step per epoch, on the training nodes of all ranks.

    Args:
        model: the model, with the same weights on every rank.
        part: the part of this rank.
        metric: metric of scores and targets.
        loss: function of model and data that returns this rank's share of the loss; None for the default loss.
        sparse_features: see :func:`~equipoise.train`.
        timeout: seconds that a rank waits for the others in one exchange.

    Raises:
        TrainingError: if the model or the data are invalid.
        DistributedError: if ranks, parts or weights do not match.
    """

    def __init__(
        self,
        model: nn.Module,
        part: Part,
        metric: Metric,
        loss: Loss | None = None,
        sparse_features: bool | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        order = inner_first(part)
        graph = DistributedGraph(part, order=order, timeout=timeout)
        check_modules(model)
        check_equal_weights(model)
        tensors = {name: getattr(part, name) for name in ("x", "y", *(f"{split}_mask" for split in SPLITS))}
        if part.parts == 1:  # the whole graph, on which a stack runs as one function
            self.data, self.own = Data(edge_index=part.edge_index, **tensors), part.own
        else:
            ordered = {name: None if rows is None else rows[order] for name, rows in tensors.items()}
            self.data, self.own = Data(edge_index=cast(Tensor, graph), **ordered), part.own[order]
        with raise_on_all_ranks():
            check_graph(model, self.data)
        self.model, self.metric, self.loss = model, metric, loss
        targets = get_targets(self.data)
        self.nodes = {split: self.data[f"{split}_mask"].nonzero().view(-1) for split in SPLITS}
        self.targets = {split: targets[indices] for split, indices in self.nodes.items()}
        counts = sum_tensor_(torch.tensor([self.targets[split].numel() for split in SPLITS]))
        self.totals = dict(zip(SPLITS, counts.tolist(), strict=True))
        if missing := [split for split in SPLITS if not self.totals[split]]:
            raise TrainingError(f"there is no target in the {missing[0]} set", remedy=f"check {missing[0]}_mask")
        call = model_caller(model)
        x = None if takes_data(model) else select_features(model, self.data.x, sparse_features)
        self.forward = ForwardPasses(model, lambda: call(self.data, x), agree=all_agree)
        self._checked = loss is not None

    def losses(self) -> Iterator[tuple[Tensor, int]]:
        """Yield the loss of the epoch's step, summed over ranks, and the number 1."""
        if self.loss is not None:
            self.model.train()
            yield sum_over_ranks(custom_loss(self.loss, self.model, self.data)), 1
            return
        scores = self.forward.train()
        if not self._checked:
            with raise_on_all_ranks():
                self._check(scores.detach())
            self._checked = True
        share = default_loss(scores.index_select(0, self.nodes["train"]), self.targets["train"], reduction="sum")
        yield sum_over_ranks(share / self.totals["train"]), 1

    def sum_gradients(self) -> None:
        """Sum the gradients over ranks, after the backward pass."""
        sum_gradients(self.model)

    def evaluate(self) -> tuple[float, float]:
        """Return the metric of all validation and of all test nodes; the same numbers on every rank."""
        scores = self.forward.evaluate() if self.loss is None else self.forward.evaluate_only()
        pairs = [(scores.index_select(0, self.nodes[split]), self.targets[split]) for split in SPLITS[1:]]
        if self.metric is accuracy:
            correct = sum_tensor_(torch.stack([correct_predictions(*pair).sum() for pair in pairs]))
            val, test = (int(count) / self.totals[split] for count, split in zip(correct, SPLITS[1:], strict=True))
        else:
            val, test = (
                self.metric(*self._gather(split, *pair)) for split, pair in zip(SPLITS[1:], pairs, strict=True)
            )
        return val, test

    def _gather(self, split: str, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and targets of a split from all ranks, in the order of the whole graph."""
        everything: list[Any] = gather_objects((self.own[self.nodes[split]], scores, targets))
        nodes, all_scores, all_targets = (torch.cat(tensors) for tensors in zip(*everything, strict=True))
        order = nodes.argsort()
        return all_scores[order], all_targets[order]

    def _check(self, scores: Tensor) -> None:
        for split, nodes in self.nodes.items():
            if len(nodes):
                check_targets(self.targets[split], split, scores.index_select(0, nodes))


def check_modules(model: nn.Module) -> None:
    """Check that every layer gives on a part what it gives on the whole graph.

    Args:
        model: the model.

    Raises:
        TrainingError: if a layer is not fused, or takes statistics over nodes.
    """
    for name, module in model.named_modules():
        where = f"{name}: {type(module).__name__}"
        if isinstance(module, MessagePassing) and not isinstance(module, SUPPORTED_LAYERS):
            raise TrainingError(
                "a layer does not run on one part of a graph",
                where=where,
                remedy="call equipoise.fuse_(model), or replace the layer by one of "
                + ", ".join(layer.__name__ for layer in FUSED_CLASSES),
            )
        if isinstance(module, NODE_STATISTICS):
            raise TrainingError(
                "a layer takes statistics over all nodes, and a rank has only its own",
                where=where,
                remedy='normalise each node by itself: Stack(..., norm="layer"), torch.nn.LayerNorm',
            )
