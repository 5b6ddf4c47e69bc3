"""One part of a graph as the source of training steps: full-graph training across processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.nn import norm as pyg_norms

from equipoise.distributed.gradients import check_equal_weights, sum_gradients, sum_over_ranks
from equipoise.distributed.graph import DistributedGraph
from equipoise.distributed.parts.part import Part
from equipoise.distributed.process_group import TIMEOUT, all_agree, gather_objects, raise_on_all_ranks, sum_tensor_
from equipoise.errors import TrainingError
from equipoise.nn.fused_convs import FUSED_CLASSES
from equipoise.nn.fused_gcn import ResidualGCNConv
from equipoise.nn.lipschitz_gat import LipschitzGATConv
from equipoise.nn.omega_gat import OmegaGATConv
from equipoise.training.metrics import Metric, accuracy, correct_predictions
from equipoise.training.sources import FullBatch
from equipoise.training.task import SPLITS, Loss, default_loss

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


class PartSource(FullBatch):
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
        graph = DistributedGraph(part, timeout=timeout)
        check_modules(model)
        check_equal_weights(model)
        names = ("x", "y", *(f"{split}_mask" for split in SPLITS), "edge_attr")
        tensors = {name: getattr(part, name) for name in names}
        # A stack runs as one function on the whole graph.
        edge_index = part.edge_index if part.parts == 1 else cast(Tensor, graph)
        data, self.own = Data(edge_index=edge_index, **tensors), part.own
        super().__init__(model, data, metric, loss, sparse_features)
        self._epoch = 0

    def losses(self) -> Iterator[tuple[Tensor, int]]:
        """Yield the loss of the epoch and the number 1; check that the first step was the same on all ranks."""
        self._epoch += 1
        if self._epoch == 2:
            check_equal_weights(self.model, after_step=True)
        yield from super().losses()

    def sum_gradients(self) -> None:
        """Sum the gradients over ranks, after the backward pass."""
        sum_gradients(self.model)

    def _errors(self) -> AbstractContextManager[None]:
        return raise_on_all_ranks()

    def _agree(self, decision: bool) -> bool:
        return all_agree(decision)

    def _sum(self, share: Tensor) -> Tensor:
        return sum_over_ranks(share)

    def _check_targets(self) -> None:
        counts = sum_tensor_(torch.tensor([self.targets[split].numel() for split in SPLITS]))
        self.totals = dict(zip(SPLITS, counts.tolist(), strict=True))
        if missing := [split for split in SPLITS if not self.totals[split]]:
            raise TrainingError(f"there is no target in the {missing[0]} set", remedy=f"check {missing[0]}_mask")

    def _default_loss(self, scores: Tensor) -> Tensor:
        share = default_loss(scores, self.targets["train"], reduction="sum")
        return sum_over_ranks(share / self.totals["train"])

    def _metrics(self, scores: Mapping[str, Tensor]) -> Iterable[float]:
        if self.metric is accuracy:
            correct = [correct_predictions(rows, self.targets[split]).sum() for split, rows in scores.items()]
            counts = sum_tensor_(torch.stack(correct)).tolist()
            return [count / self.totals[split] for count, split in zip(counts, scores, strict=True)]
        return [self.metric(*self._gather(split, rows)) for split, rows in scores.items()]

    def _gather(self, split: str, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and targets of a split from all ranks, in the order of the whole graph."""
        everything: list[Any] = gather_objects((self.own[self.nodes[split]], scores, self.targets[split]))
        nodes, all_scores, all_targets = (torch.cat(tensors) for tensors in zip(*everything, strict=True))
        order = nodes.argsort()
        return all_scores[order], all_targets[order]


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
