"""Quantities of a whole network at one moment, layer by layer: pure functions, a group of the recorder's each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.kernels.csr import Graphs
from equipoise.kernels.smoothness import mean_entropy
from equipoise.train.attention import attention_scores
from equipoise.train.ledger import Ledger
from equipoise.train.neighbourhoods import Neighbourhoods
from equipoise.train.passes import Pass
from equipoise.train.quantities import (
    HALF,
    MOVED,
    absolute_change,
    array,
    box,
    changes,
    distances,
    relative_change,
    relative_gradient_norm,
    share,
    update_size,
)
from equipoise.train.recording import Array, Entry
from equipoise.train.smoothness import attention_entropy, smoothness
from equipoise.train.watched import Watched

Values = Mapping[nn.Parameter, Tensor]


def gradient(layers: Sequence[Watched]) -> Iterator[Entry]:
    """‖∇W‖/‖W‖ and ‖∇a‖/‖a‖."""
    for number, layer in enumerate(layers, start=1):
        yield number_of("gradient/features", number, relative_gradient_norm(layer.features))
        if layer.attention:
            yield number_of("gradient/attention", number, relative_gradient_norm(layer.attention))


def balance(ledger: Ledger, rate: tuple[float, float] | None) -> Iterator[Entry]:
    """c and δ of every neuron and, for a step of plain gradient descent at a known rate, the drift of c."""
    found = ledger.balance()
    yield from by_neuron("balance/c", ledger, found.c)
    yield from by_neuron("balance/delta", ledger, found.delta)
    for number, terms in ledger.by_layer(found.terms):
        yield number_of("balance/terms", number, float(terms.mean()))
    if rate is not None:
        yield from by_neuron("balance/predicted_drift", ledger, found.predicted_drift(*rate))


def change(layers: Sequence[Watched], start: Values) -> Iterator[Entry]:
    """How far weights are from the start: relative for feature weights, absolute for attention."""
    for number, layer in enumerate(layers, start=1):
        if layer.features:
            found = changes(layer.features, (start[p] for p in layer.features))
            yield number_of("change/features", number, found.mean)
            yield number_of("change/moved", number, found.moved)
            yield number_of("change/moved_half", number, found.moved_half)
            yield number_of("change/unchanged_features", number, found.unchanged)
        if layer.attention:
            apart = distances(layer.attention, (start[p] for p in layer.attention))
            yield number_of("change/attention", number, apart.mean)
            yield number_of("change/unchanged_attention", number, apart.unchanged)


def best(layers: Sequence[Watched], start: Values, state: Values) -> Iterator[Entry]:
    """The same for the best model of a run, with the boxes of the changes that are not zero."""
    for number, layer in enumerate(layers, start=1):
        rules = (("features", layer.features, relative_change), ("attention", layer.attention, absolute_change))
        for part, parameters, rule in rules:
            if not parameters:
                continue
            differences = np.concatenate([rule(state[p], start[p]) for p in parameters])
            yield number_of(f"best/{part}_unchanged", number, share(differences == 0))
            if part == "features":
                yield number_of("best/moved", number, share(differences > MOVED))
                yield number_of("best/moved_half", number, share(differences > HALF))
            changed = differences[differences > 0]
            if len(changed):
                yield from (number_of(f"best/{part}_{name}", number, value) for name, value in box(changed).items())


def update(layers: Sequence[Watched], before: Values) -> Iterator[Entry]:
    """‖θ(t+1) − θ(t)‖ / ‖θ(t)‖ of a step that has been taken."""
    for number, layer in enumerate(layers, start=1):
        size = update_size(layer.parameters, [before[p] for p in layer.parameters])
        yield number_of("update/size", number, size)


def representation(passes: Mapping[int, Pass], graphs: Graphs) -> Iterator[Entry]:
    """Dirichlet energy and mean average distance of what layers wrote."""
    for number, passed in passes.items():
        near = _near(graphs, passed.edge_index, passed.output)
        if near is not None and passed.output is not None:
            found = smoothness(passed.output.index_select(0, near.nodes), near.edge_index, near.targets)
            yield number_of("representation/dirichlet", number, found.dirichlet)
            yield number_of("representation/mad", number, found.mad)


def attention_of(layers: Sequence[Watched], passes: Mapping[int, Pass], graphs: Graphs) -> Iterator[Entry]:
    """The entropy of attention, as a layer shows it, or computed again from what the layer read."""
    for number, passed in passes.items():
        layer, near = layers[number - 1], _near(graphs, passed.edge_index, passed.x)
        if near is None or passed.x is None or not passed.plain or not layer.attention:
            continue
        if passed.attention is not None:
            graph, alpha = passed.attention.graph, array(passed.attention.alpha)
            entropy = mean_entropy(alpha, graph.ptr, near.nodes[: near.targets].numpy())
        elif found := attention_scores(layer.module, _rows(passed.x, near.nodes), near.edge_index, near.targets):
            scores, target = found
            whole = target < near.targets  # of their neighbours, the sample has not all neighbours
            entropy = float(attention_entropy(scores[whole], target[whole], near.targets).mean())
        else:
            continue
        yield number_of("attention/entropy", number, entropy)


def number_of(quantity: str, layer: int, value: float) -> Entry:
    """An entry with one number."""
    return Entry(quantity, layer, np.array(value, dtype=np.float64))


def by_neuron(quantity: str, ledger: Ledger, values: Array) -> Iterator[Entry]:
    """One entry a layer, with a number for each neuron that a law holds for."""
    return (Entry(quantity, number, mine) for number, mine in ledger.by_layer(values))


def _near(graphs: Graphs, edge_index: Tensor | None, h: Tensor | None) -> Neighbourhoods | None:
    """The neighbourhoods to look at; None where the layer read no graph, or wrote no node features."""
    if edge_index is None or h is None or h.dim() != 2:
        return None
    near: Neighbourhoods = graphs.made(edge_index, len(h), lambda: Neighbourhoods.of(edge_index, len(h)))
    return near


def _rows(x: Tensor, nodes: Tensor) -> Tensor:
    if x.layout == torch.strided:
        return x.index_select(0, nodes)
    rows: Tensor = x.to_sparse_coo().index_select(0, nodes).to_dense()  # type: ignore[no-untyped-call]
    return rows
