"""Who is timed: an epoch of :func:`equipoise.train`, and the same epoch with PyG's layers as they come.

An epoch is what the protocol needs: a step, and validation and test accuracy after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv
from torch_geometric.utils import add_self_loops, remove_self_loops

from equipoise.bench.cases import Case
from equipoise.bench.clocks import Clock, clock, intervals
from equipoise.bench.report import OURS, PYG
from equipoise.errors import MeasurementError
from equipoise.init.schemes import initialize_
from equipoise.kernels.denormals import denormals_as_zero
from equipoise.nn.features import sparse_rows
from equipoise.nn.stack import Stack
from equipoise.train.protocol import train

LOOPED, SPARSE = "looped", "sparse"
RATE = 1e-4  # small, so that the hundredth epoch computes what the first does
SPARSE_BELOW = 0.25  # stored share of the features from which on nobody would store them sparsely
TOLERANCE = 1e-3  # of float32 outputs after many layers, relative to the largest

Forward = Callable[[], Tensor]


class PlainGATv2(nn.Module):
    """PyG's layers with a ReLU between them, as one writes it down; parameters are named as those of ``Stack``."""

    def __init__(self, widths: Sequence[int], *, loops: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            GATv2Conv(fan_in, fan_out, share_weights=True, bias=False, add_self_loops=loops)
            for fan_in, fan_out in pairwise(widths)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = conv(x, edge_index).relu()
        scores: Tensor = self.convs[-1](x, edge_index)
        return scores


def network(case: Case, data: Data) -> Stack:
    """The network of a case, from the balanced start."""
    model = Stack("gatv2", case.widths(data.num_features, data.classes))
    initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0))
    return model


def ours(model: nn.Module, data: Data) -> Clock:
    """Epochs of :func:`equipoise.train`, from the end of one to the end of the next."""

    def run(times: int) -> list[float]:
        stamps: list[float] = []

        def on_epoch(*_: object) -> None:
            stamps.append(time.perf_counter())

        history = train(model, data, lr=RATE, epochs=times + 1, stop_loss=0.0, on_epoch=on_epoch)
        if history.epochs <= times:
            raise MeasurementError(f"training was {history.outcome} after {history.epochs} epochs", where=str(model))
        return intervals(stamps)

    return run


def pyg_variants(case: Case, data: Data, *, every: bool = True) -> dict[str, tuple[nn.Module, Forward]]:
    """PyG's network by name, with what computes its scores; only the one that is usually best unless ``every``.

    Self-loops are added by each layer, or once beforehand; features are dense or, where most are zero, also sparse.
    """
    looped, _ = add_self_loops(remove_self_loops(data.edge_index)[0], num_nodes=data.num_nodes)
    graphs = ({"": (data.edge_index, True)} if every else {}) | {f" {LOOPED}": (looped, False)}
    features = {"": data.x}
    if every and data.x.count_nonzero() < SPARSE_BELOW * data.x.numel():
        features[f" {SPARSE}"] = sparse_rows(data.x)
    state = network(case, data).state_dict()
    variants: dict[str, tuple[nn.Module, Forward]] = {}
    for of_x, x in features.items():
        for of_graph, (edge_index, loops) in graphs.items():
            model = PlainGATv2(case.widths(data.num_features, data.classes), loops=loops)
            model.load_state_dict(state)
            variants[f"{PYG}{of_x}{of_graph}"] = model, _forward(model, x, edge_index)
    return variants


def rival(model: nn.Module, forward: Forward, data: Data) -> Clock:
    """Epochs as they are usually written: a step, then an evaluation; numbers too small are zero, as in ours."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    @denormals_as_zero()
    def epoch() -> None:
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(forward()[data.train_mask], data.y[data.train_mask]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = forward().argmax(dim=-1) == data.y
        for mask in (data.val_mask, data.test_mask):
            right[mask].double().mean().item()

    return clock(epoch)


def check_agreement(model: nn.Module, data: Data, forwards: dict[str, Forward]) -> None:
    """A named error if they do not compute the same: then nothing can be said about their speed."""
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
        for name, forward in forwards.items():
            difference = float((forward() - expected).abs().max() / expected.abs().max())
            if not difference <= TOLERANCE:
                raise MeasurementError(
                    f"{name} and {OURS} differ by {difference:.1e} of the largest score",
                    remedy="report it, with this line and your versions of torch and PyG",
                )


def _forward(model: nn.Module, x: Tensor, edge_index: Tensor) -> Forward:
    return lambda: model(x, edge_index)
