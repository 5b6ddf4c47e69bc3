"""The timed implementations of one epoch: :func:`equipoise.train`, and a plain training loop with PyG or DGL layers.

An epoch is what the training protocol needs: one optimizer step, then validation and test accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv
from torch_geometric.utils import add_self_loops, remove_self_loops

from equipoise.bench.cases import Case
from equipoise.bench.report import EQUIPOISE, PYG
from equipoise.bench.timing import Timer, intervals, make_timer
from equipoise.errors import MeasurementError
from equipoise.init.schemes import initialize_
from equipoise.kernels.denormals import flush_denormals
from equipoise.nn.fused_convs import fuse_
from equipoise.nn.sparse_linear import to_csr_tensor
from equipoise.nn.stack import Stack
from equipoise.training.loop import train

DGL = "DGL"
EMPTY_NETWORK = "empty network"
LOOPED, SPARSE = "looped", "sparse"  # suffixes of PyG's variants
LEARNING_RATE = 1e-4  # small, so that the hundredth epoch costs as much as the first
SPARSE_BELOW = 0.25  # density of the features above which a sparse matrix does not pay
TOLERANCE = 1e-3  # of float32 outputs after many layers, relative to the largest
WARMUP_EPOCHS = 2  # epochs after which `train` knows whether one forward pass per epoch suffices

Forward = Callable[[], Tensor]


class PlainGATv2(nn.Module):
    """PyG layers with a ReLU between them; parameters have the same names as those of ``Stack``."""

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


class EmptyNetwork(nn.Module):
    """The parameters of a network without its computation: constant scores, and gradients of zero.

    Its epochs cost what no layer can save: loss, accuracies, autograd's bookkeeping per parameter and the optimizer.

    Args:
        model: the network.
        data: the graph, with ``classes``.
    """

    def __init__(self, model: nn.Module, data: Data) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(weight.detach().clone()) for weight in model.parameters())
        self.scores = torch.zeros(data.num_nodes, data.classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        del x, edge_index
        scores: Tensor = _ConstantScores.apply(self.scores, *self.weights)  # type: ignore[no-untyped-call]
        return scores


class _ConstantScores(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(*weights)
        return scores.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        del grad
        return None, *map(torch.zeros_like, ctx.saved_tensors)


def build_stack(case: Case, data: Data) -> Stack:
    """Build the network of a case, initialised with bal-o."""
    model = Stack("gatv2", case.widths(data.num_features, data.classes))
    initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0))
    return model


def train_timer(model: nn.Module, data: Data) -> Timer:
    """Return a timer of the epochs of :func:`equipoise.train`, each from the end of the previous epoch."""

    def run(repeats: int) -> list[float]:
        stamps: list[float] = []

        def on_epoch(*_: object) -> None:
            stamps.append(time.perf_counter())

        epochs = WARMUP_EPOCHS + repeats
        history = train(model, data, lr=LEARNING_RATE, epochs=epochs, stop_loss=0.0, on_epoch=on_epoch)
        if history.epochs < epochs:
            raise MeasurementError(f"training {history.outcome} after {history.epochs} epochs", where=str(model))
        return intervals(stamps[WARMUP_EPOCHS - 1 :])

    return run


def plain_loop_timer(model: nn.Module, forward: Forward, data: Data) -> Timer:
    """Return a timer of epochs as usually written: a step, then an evaluation; flushes denormals, as ``train``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    @flush_denormals()
    def epoch() -> None:
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(forward()[data.train_mask], data.y[data.train_mask]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        model.eval()
        with torch.no_grad():
            correct = forward().argmax(dim=-1) == data.y
        for mask in (data.val_mask, data.test_mask):
            correct[mask].double().mean().item()

    return make_timer(epoch)


def pyg_variants(case: Case, data: Data, *, every: bool = True) -> dict[str, tuple[nn.Module, Forward]]:
    """Build PyG's network in its variants.

    Self-loops are added by each layer, or once beforehand (*looped*). Features are dense or, if most are zero, also
    sparse.

    Args:
        case: The network.
        data: The graph.
        every: Whether to build all variants, or only the one that is usually fastest on dense features.

    Returns:
        By name, the model and a function that computes its scores.
    """
    looped, _ = add_self_loops(remove_self_loops(data.edge_index)[0], num_nodes=data.num_nodes)
    graphs = ({"": (data.edge_index, True)} if every else {}) | {f" {LOOPED}": (looped, False)}
    features = {"": data.x}
    if every and data.x.count_nonzero() < SPARSE_BELOW * data.x.numel():
        features[f" {SPARSE}"] = to_csr_tensor(data.x)
    state = build_stack(case, data).state_dict()
    variants: dict[str, tuple[nn.Module, Forward]] = {}
    for feature_suffix, x in features.items():
        for graph_suffix, (edge_index, loops) in graphs.items():
            model = PlainGATv2(case.widths(data.num_features, data.classes), loops=loops)
            model.load_state_dict(state)
            variants[f"{PYG}{feature_suffix}{graph_suffix}"] = model, _forward(model, x, edge_index)
    return variants


def _forward(model: Callable[..., Tensor], x: Tensor, edge_index: Tensor) -> Forward:
    return lambda: model(x, edge_index)


def compiled_variants(case: Case, data: Data) -> dict[str, tuple[nn.Module, Forward]]:
    """Compile PyG's network by torch.compile, with stock and with fused layers.

    Args:
        case: The network.
        data: The graph.

    Returns:
        By name, the model and a function that computes its scores. Stock layers get a graph with self-loops, as torch
        cannot compile their addition without breaking the graph.
    """
    ((name, (stock, _)),) = pyg_variants(case, data, every=False).items()
    looped, _ = add_self_loops(remove_self_loops(data.edge_index)[0], num_nodes=data.num_nodes)
    fused = PlainGATv2(case.widths(data.num_features, data.classes), loops=True)
    fused.load_state_dict(stock.state_dict())
    fuse_(fused)
    return {
        EQUIPOISE: (fused, _forward(torch.compile(fused, fullgraph=True), data.x, data.edge_index)),
        name: (stock, _forward(torch.compile(stock, fullgraph=True), data.x, looped)),
    }


def dgl_available() -> bool:
    """Whether DGL can be imported; an installed DGL built for another version of torch cannot."""
    try:
        import dgl  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


def dgl_variant(data: Data, widths: Sequence[int], state: dict[str, Tensor]) -> tuple[nn.Module, Forward]:
    """Build the network from ``dgl.nn.GATv2Conv`` layers, with self-loops added beforehand.

    Args:
        data: The graph.
        widths: Input features, hidden widths and classes.
        state: ``state_dict`` of the ``Stack`` whose weights to copy.

    Returns:
        The layers and a function that computes the scores.
    """
    import dgl
    from dgl.nn import GATv2Conv

    source, target = data.edge_index
    graph = dgl.add_self_loop(dgl.remove_self_loop(dgl.graph((source, target), num_nodes=data.num_nodes)))
    convs = nn.ModuleList()
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        conv: Any = GATv2Conv(fan_in, fan_out, num_heads=1, bias=False, share_weights=True)
        with torch.no_grad():
            conv.fc_src.weight.copy_(state[f"convs.{layer}.lin_l.weight"])
            conv.attn.copy_(state[f"convs.{layer}.att"])
        convs.append(conv)

    def forward() -> Tensor:
        h = data.x
        for conv in convs[:-1]:
            h = conv(graph, h).flatten(1).relu()
        scores: Tensor = convs[-1](graph, h).flatten(1)
        return scores

    return convs, forward


def check_agreement(model: nn.Module, data: Data, forwards: dict[str, Forward]) -> None:
    """Check that all implementations compute the same scores before their speed is compared.

    Args:
        model: The network of this package.
        data: The graph.
        forwards: The competitors' functions that compute scores, by name.

    Raises:
        MeasurementError: If the scores differ.
    """
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
        for name, forward in forwards.items():
            difference = float((forward() - expected).abs().max() / expected.abs().max())
            if not difference <= TOLERANCE:
                raise MeasurementError(
                    f"{name} and {EQUIPOISE} differ by {difference:.1e} of the largest score",
                    remedy="report it, with this line and your versions of torch and PyG",
                )
