"""Quantities of a whole network at one moment, layer by layer: pure functions, a group of the recorder's each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.laws.law import Law
from equipoise.train.attention import attention_scores
from equipoise.train.quantities import (
    MOVED,
    absolute_change,
    balances,
    box,
    relative_change,
    relative_gradient_norm,
    share,
    update_size,
)
from equipoise.train.recording import Array, Entry
from equipoise.train.smoothness import attention_entropy, dirichlet_energy, mean_average_distance
from equipoise.train.watched import Neighbourhoods, Pass, Watched

HALF = 0.5  # the other threshold of the paper's figures: weights that changed by half of what they are

Values = Mapping[nn.Parameter, Tensor]


def gradient(layers: Sequence[Watched]) -> Iterator[Entry]:
    """‖∇W‖/‖W‖ and ‖∇a‖/‖a‖."""
    for number, layer in enumerate(layers, start=1):
        yield number_of("gradient/features", number, relative_gradient_norm(layer.features))
        if layer.attention:
            yield number_of("gradient/attention", number, relative_gradient_norm(layer.attention))


def balance(laws: Sequence[Law], places: Sequence[int], rate: tuple[float, float] | None) -> Iterator[Entry]:
    """c and δ of every neuron and, for a step of plain gradient descent at a known rate, the drift of c."""
    found = balances(laws)
    yield from by_neuron("balance/c", places, [of_law.c for of_law in found])
    yield from by_neuron("balance/delta", places, [of_law.delta for of_law in found])
    for number in dict.fromkeys(places):
        terms = np.concatenate([of_law.terms for place, of_law in zip(places, found, strict=True) if place == number])
        yield number_of("balance/terms", number, float(terms.mean()))
    if rate is not None:
        yield from by_neuron("balance/predicted_drift", places, [of_law.predicted_drift(*rate) for of_law in found])


def change(layers: Sequence[Watched], start: Values) -> Iterator[Entry]:
    """How far weights are from the start: relative for feature weights, absolute for attention."""
    for number, layer in enumerate(layers, start=1):
        if layer.features:
            changes = np.concatenate([relative_change(p, start[p]) for p in layer.features])
            yield number_of("change/features", number, float(changes.mean()) if len(changes) else 0.0)
            yield number_of("change/moved", number, share(changes > MOVED))
            yield number_of("change/moved_half", number, share(changes > HALF))
            yield number_of("change/unchanged_features", number, share(changes == 0))
        if layer.attention:
            changes = np.concatenate([absolute_change(p, start[p]) for p in layer.attention])
            yield number_of("change/attention", number, float(changes.mean()))
            yield number_of("change/unchanged_attention", number, share(changes == 0))


def best(layers: Sequence[Watched], start: Values, state: Values) -> Iterator[Entry]:
    """The same for the best model of a run, with the boxes of the changes that are not zero."""
    for number, layer in enumerate(layers, start=1):
        rules = (("features", layer.features, relative_change), ("attention", layer.attention, absolute_change))
        for part, parameters, rule in rules:
            if not parameters:
                continue
            changes = np.concatenate([rule(state[p], start[p]) for p in parameters])
            yield number_of(f"best/{part}_unchanged", number, share(changes == 0))
            if part == "features":
                yield number_of("best/moved", number, share(changes > MOVED))
                yield number_of("best/moved_half", number, share(changes > HALF))
            changed = changes[changes > 0]
            if len(changed):
                yield from (number_of(f"best/{part}_{name}", number, value) for name, value in box(changed).items())


def update(layers: Sequence[Watched], before: Values) -> Iterator[Entry]:
    """‖θ(t+1) − θ(t)‖ / ‖θ(t)‖ of a step that has been taken."""
    for number, layer in enumerate(layers, start=1):
        size = update_size(layer.parameters, [before[p] for p in layer.parameters])
        yield number_of("update/size", number, size)


def representation(passes: Mapping[int, Pass], graphs: Graphs) -> Iterator[Entry]:
    """Dirichlet energy and mean average distance of what layers wrote; layers of one width all at once."""
    alike: dict[tuple[int, int], list[int]] = {}
    samples: dict[int, tuple[Tensor, Neighbourhoods]] = {}
    for number, passed in passes.items():
        near = graphs.near(passed.edge_index, passed.output)
        if near is not None and passed.output is not None:
            samples[number] = passed.output.index_select(0, near.nodes), near
            alike.setdefault((passed.output.shape[1], id(near)), []).append(number)
    for numbers in alike.values():
        h, near = torch.stack([samples[number][0] for number in numbers]), samples[numbers[0]][1]
        energies = dirichlet_energy(h, near.edge_index, near.targets)
        distances = mean_average_distance(h, near.edge_index)
        for number, energy, distance in zip(numbers, energies.tolist(), distances.tolist(), strict=True):
            yield number_of("representation/dirichlet", number, energy)
            yield number_of("representation/mad", number, distance)


def attention_of(layers: Sequence[Watched], passes: Mapping[int, Pass], graphs: Graphs) -> Iterator[Entry]:
    """The entropy of attention, computed again from what layers read; layers with as many edges all at once."""
    alike: dict[tuple[int, int], list[tuple[int, Tensor, Tensor, int]]] = {}
    for number, passed in passes.items():
        layer, near = layers[number - 1], graphs.near(passed.edge_index, passed.x)
        if near is None or passed.x is None or not passed.plain or not layer.attention:
            continue
        found = attention_scores(layer.module, _rows(passed.x, near.nodes), near.edge_index, near.targets)
        if found is not None:
            scores, target = found
            alike.setdefault((len(target), id(near)), []).append((number, scores, target, near.targets))
    for group in alike.values():
        _, _, target, count = group[0]
        whole = target < count  # of their neighbours, the sample has not all neighbours
        scores = torch.cat([scores for _, scores, _, _ in group], dim=1)
        entropies = attention_entropy(scores[whole], target[whole], count)
        ends = np.cumsum([scores.shape[1] for _, scores, _, _ in group])
        for (number, scores, _, _), end in zip(group, ends, strict=True):
            yield number_of("attention/entropy", number, float(entropies[end - scores.shape[1] : end].mean()))


class Graphs:
    """A sample of the graph that layers read, kept for as long as they read the same one."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, int, Neighbourhoods] | None = None

    def near(self, edge_index: Tensor | None, h: Tensor | None) -> Neighbourhoods | None:
        """The neighbourhoods to look at; None where the layer read no graph, or wrote no node features."""
        if edge_index is None or h is None or h.dim() != 2:
            return None
        if self._last is None or self._last[0] is not edge_index or self._last[1] != len(h):
            self._last = edge_index, len(h), Neighbourhoods.of(edge_index, len(h))
        return self._last[2]


def number_of(quantity: str, layer: int, value: float) -> Entry:
    """An entry with one number."""
    return Entry(quantity, layer, np.array(value, dtype=np.float64))


def by_neuron(quantity: str, places: Sequence[int], values: Sequence[Array]) -> Iterator[Entry]:
    """One entry a layer; where several laws belong to one layer, their neurons are counted on."""
    for number in dict.fromkeys(places):
        mine = [of_law for place, of_law in zip(places, values, strict=True) if place == number]
        yield Entry(quantity, number, np.concatenate(mine))


def _rows(x: Tensor, nodes: Tensor) -> Tensor:
    if x.layout == torch.strided:
        return x.index_select(0, nodes)
    rows: Tensor = x.to_sparse_coo().index_select(0, nodes).to_dense()  # type: ignore[no-untyped-call]
    return rows
