"""Training on mini-batches: every batch brings a new graph, so that sorting its edges is part of the cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, remove_self_loops, subgraph

from equipoise.bench.cases import Case, load_graph
from equipoise.bench.competitors import LOOPED, PlainGATv2, build_stack, check_agreement
from equipoise.bench.report import EQUIPOISE, PYG, Timing
from equipoise.bench.timing import Timer, interleave, make_timer
from equipoise.kernels.denormals import flush_denormals

BATCHES = 200
BATCH_NODES = 2_000  # of 20,000, so that a batch has a hundredth of the edges, about 10,000

Forward = Callable[[Tensor, Tensor], Tensor]


def time_mini_batches(case: Case) -> Timing:
    """Time forward and backward passes on sampled subgraphs, with equipoise and PyG in alternation.

    Args:
        case: The network, and the graph to sample from.

    Returns:
        Milliseconds per batch.
    """
    data = load_graph(case)
    batches = [sample_nodes(data, BATCH_NODES, seed) for seed in range(1, BATCHES + 1)]  # 0 is the seed of the graph
    model = build_stack(case, data)
    forwards: dict[str, tuple[nn.Module, Forward]] = {EQUIPOISE: (model, model)}
    for name, loops in ((PYG, True), (f"{PYG} {LOOPED}", False)):
        plain = PlainGATv2(case.widths(data.num_features, data.classes), loops=loops)
        plain.load_state_dict(model.state_dict())
        forwards[name] = plain, plain if loops else _looped_forward(plain)
    first = batches[0]
    check_agreement(
        model, first, {name: partial(forward, first.x, first.edge_index) for name, (_, forward) in forwards.items()}
    )
    timers = {name: batch_timer(net, forward, batches) for name, (net, forward) in forwards.items()}
    return Timing(case.name, torch.get_num_threads(), interleave(timers, case.rounds, case.epochs))


def sample_nodes(data: Data, nodes: int, seed: int) -> Data:
    """Sample nodes uniformly and take the subgraph that they induce, as GraphSAINT's node sampler does.

    Args:
        data: The graph.
        nodes: Number of nodes of the subgraph.
        seed: Seed of the sample.

    Returns:
        The subgraph, with the features, labels and training nodes of its nodes.

    Example:
        >>> from equipoise.bench.cases import random_graph
        >>> batch = sample_nodes(random_graph(100, 400, 8), 50, seed=0)
        >>> batch.num_nodes, batch.edge_index.shape[1] < 400
        (50, True)
    """
    chosen = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(seed))[:nodes]
    edge_index, _ = subgraph(chosen, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes)
    return Data(x=data.x[chosen], y=data.y[chosen], edge_index=edge_index, train_mask=data.train_mask[chosen])


def batch_timer(model: nn.Module, forward: Forward, batches: list[Data]) -> Timer:
    """Return a timer of forward and backward passes, each on the next batch."""
    following: Iterator[Data] = cycle(batches)

    @flush_denormals()
    def step() -> None:
        batch = next(following)
        model.zero_grad()
        scores = forward(batch.x, batch.edge_index.clone())  # a new tensor, as from a loader: nothing is cached
        F.cross_entropy(scores[batch.train_mask], batch.y[batch.train_mask]).backward()  # type: ignore[no-untyped-call]

    return make_timer(step)


def _looped_forward(model: nn.Module) -> Forward:
    """Add self-loops once per batch, not once per layer."""

    def forward(x: Tensor, edge_index: Tensor) -> Tensor:
        looped, _ = add_self_loops(remove_self_loops(edge_index)[0], num_nodes=x.shape[0])
        scores: Tensor = model(x, looped)
        return scores

    return forward
