r"""Quantities measured during training, as pure functions.

The first part computes single numbers from parameters, gradients, representations and attention; the second part turns
them into records, one function per group of the recorder.

Deep graph networks may *over-smooth*: representations of neighbours become equal, and nodes can no longer be
distinguished. Two measures show it, the second independent of scale:

    Dirichlet energy        (1/|V|) Σ_i Σ_{j∈N(i)} ‖h_i − h_j‖²                        (Rusch et al., 2023)
    mean average distance   mean over i of the mean over j∈N(i) of 1 − cos(h_i, h_j)    (Chen et al., 2020)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.kernels.graph_cache import GraphCache
from equipoise.kernels.reductions import (
    add_changes,
    add_distances,
    add_norms,
    add_step,
    as_array,
    as_flat_array,
    mean_entropy,
    neighbour_distances,
)
from equipoise.training.attention import Neighbourhoods, attention_entropy, attention_scores
from equipoise.training.batched_laws import BatchedLaws
from equipoise.training.capture import LayerCall, RecordedLayer
from equipoise.training.recording import Array, Record, scalar_record

SIGNIFICANT = 1e-4  # weights with a smaller final magnitude do not count
MOVED_THRESHOLD = 0.05  # a weight has moved if its relative change exceeds this
HALF_THRESHOLD = 0.5  # second threshold of the paper's figures

ParameterValues = Mapping[nn.Parameter, Tensor]


def relative_gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Return ‖∇W‖_F / ‖W‖_F of all parameters together; 0 without gradients, infinite if only W is zero.

    Example:
        >>> W = nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> W.square().sum().backward()
        >>> relative_gradient_norm([W])
        2.0
    """
    norms, norms_without_gradient = np.zeros((2, 2))
    for parameter in parameters:
        if parameter.grad is not None:
            add_norms(as_flat_array(parameter), as_flat_array(parameter.grad), norms)
        else:
            add_norms(as_flat_array(parameter), as_flat_array(parameter), norms_without_gradient)
    return _norm_ratio(norms[1], norms[0] + norms_without_gradient[0])


def update_size(after: Iterable[Tensor], before: Iterable[Tensor]) -> float:
    """Return ‖θ' − θ‖ / ‖θ‖ of a step from θ to θ', all parameters together; infinite if only θ is zero.

    Example:
        >>> update_size([torch.tensor([3.0, 5.0])], [torch.tensor([3.0, 4.0])])
        0.2
    """
    norms = np.zeros(2)
    for new, old in zip(after, before, strict=True):
        add_step(as_flat_array(new), as_flat_array(old), norms)
    return _norm_ratio(norms[1], norms[0])


def relative_change(now: Tensor, initial: Tensor, significant: float = SIGNIFICANT) -> Array:
    """Return |(w − w₀) / w| of the weights with |w| ≥ ``significant``, flattened.

    Example:
        >>> relative_change(torch.tensor([2.0, 1e-9, 4.0]), torch.tensor([1.0, 1.0, 4.0])).tolist()
        [0.5, 0.0]
    """
    w, w0 = as_flat_array(now), as_flat_array(initial)
    with np.errstate(divide="ignore", invalid="ignore"):  # zeros are filtered out afterwards
        changes: Array = np.abs((w - w0) / w)[np.abs(w) >= significant]
    return changes


def absolute_change(now: Tensor, initial: Tensor) -> Array:
    """Return |a − a₀| of all entries, flattened; for attention, which may be zero at initialisation."""
    changes: Array = np.abs(as_flat_array(now) - as_flat_array(initial))
    return changes


class RelativeChangeStats(NamedTuple):
    """Statistics of relative weight changes.

    Attributes:
        mean: mean relative change.
        moved: fraction of weights that changed by more than 5 %.
        moved_half: fraction that changed by more than 50 %.
        unchanged: fraction that did not change at all.
    """

    mean: float
    moved: float
    moved_half: float
    unchanged: float


def relative_change_stats(
    now: Iterable[Tensor], initial: Iterable[Tensor], significant: float = SIGNIFICANT
) -> RelativeChangeStats:
    """Compute statistics of :func:`relative_change` over all parameters together, without storing the changes.

    Args:
        now: current weights.
        initial: initial weights.
        significant: weights with a smaller current magnitude do not count.

    Returns:
        The statistics.

    Example:
        >>> relative_change_stats([torch.tensor([2.0, 1e-9, 4.0])], [torch.tensor([1.0, 1.0, 4.0])])
        RelativeChangeStats(mean=0.25, moved=0.5, moved_half=0.0, unchanged=0.5)
    """
    sums = np.zeros(5)
    for new, old in zip(now, initial, strict=True):
        add_changes(as_flat_array(new), as_flat_array(old), significant, MOVED_THRESHOLD, HALF_THRESHOLD, sums)
    return RelativeChangeStats(*(sums[1:] / max(sums[0], 1.0)).tolist())


class AbsoluteChangeStats(NamedTuple):
    """Statistics of absolute weight changes: their mean, and the fraction of weights that did not change at all."""

    mean: float
    unchanged: float


def absolute_change_stats(now: Iterable[Tensor], initial: Iterable[Tensor]) -> AbsoluteChangeStats:
    """Compute statistics of :func:`absolute_change` over all parameters together, without storing the changes.

    Args:
        now: current weights.
        initial: initial weights.

    Returns:
        The statistics.

    Example:
        >>> absolute_change_stats([torch.tensor([2.0, 3.0])], [torch.tensor([1.0, 3.0])])
        AbsoluteChangeStats(mean=0.5, unchanged=0.5)
    """
    sums = np.zeros(3)
    for new, old in zip(now, initial, strict=True):
        add_distances(as_flat_array(new), as_flat_array(old), sums)
    return AbsoluteChangeStats(*(sums[1:] / max(sums[0], 1.0)).tolist())


def fraction(mask: Array) -> float:
    """Return the fraction of true entries; 0 for an empty array."""
    return float(np.count_nonzero(mask)) / mask.size if mask.size else 0.0


def box_stats(values: Array) -> dict[str, float]:
    """Compute the statistics of a box plot: quartiles, mean, and whiskers at most 1.5 interquartile ranges long.

    Args:
        values: the sample; not empty.

    Returns:
        ``low``, ``q1``, ``median``, ``q3``, ``high`` and ``mean``.

    Example:
        >>> box_stats(np.array([1.0, 2.0, 3.0, 4.0, 100.0]))
        {'low': 1.0, 'q1': 2.0, 'median': 3.0, 'q3': 4.0, 'high': 4.0, 'mean': 22.0}
    """
    values = values.astype(np.float64)
    q1, median, q3 = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    whisker = 1.5 * (q3 - q1)
    inliers = values[(values >= q1 - whisker) & (values <= q3 + whisker)]
    low, high, mean = float(inliers.min()), float(inliers.max()), float(values.mean())
    return {"low": low, "q1": q1, "median": median, "q3": q3, "high": high, "mean": mean}


def _norm_ratio(numerator: float, denominator: float) -> float:
    """Return the ratio of two norms, given their squares."""
    if denominator == 0.0:
        return float("inf") if numerator else 0.0
    return float((numerator / denominator) ** 0.5)


class Smoothness(NamedTuple):
    """Dirichlet energy and mean average distance (MAD) of a representation."""

    dirichlet: float
    mad: float


def smoothness(h: Tensor, edge_index: Tensor, num_targets: int | None = None) -> Smoothness:
    """Compute Dirichlet energy and mean average distance of a representation.

    The cosine distance is computed as half the squared distance of unit vectors, so it is 0 between two zero vectors.

    Args:
        h: (nodes, channels).
        edge_index: (2, edges), from neighbour to node.
        num_targets: number of nodes that the energy is averaged over; all by default. The distance is averaged over
            nodes with neighbours.

    Returns:
        Both measures.

    Example:
        >>> smoothness(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 3.0]]), torch.tensor([[1, 1], [0, 2]]))
        Smoothness(dirichlet=2.0, mad=0.5)
    """
    source, target = edge_index.cpu().numpy()
    energy, distance = neighbour_distances(np.ascontiguousarray(as_array(h)), source, target)
    return Smoothness(energy / (num_targets or max(len(h), 1)), distance)


def gradient_records(layers: Sequence[RecordedLayer]) -> Iterator[Record]:
    """Yield ‖∇W‖/‖W‖ and ‖∇a‖/‖a‖ of every layer."""
    for number, layer in enumerate(layers, start=1):
        yield scalar_record("gradient/features", number, relative_gradient_norm(layer.features))
        if layer.attention:
            yield scalar_record("gradient/attention", number, relative_gradient_norm(layer.attention))


def balance_records(laws: BatchedLaws, descent: tuple[float, float] | None) -> Iterator[Record]:
    """Yield c and δ of every neuron, and the predicted drift of c.

    Args:
        laws: the laws of the network.
        descent: learning rate and weight decay if the step is plain gradient descent; without them no prediction.

    Yields:
        The records.
    """
    state = laws.balance()
    yield from neuron_records("balance/c", laws, state.c)
    yield from neuron_records("balance/delta", laws, state.delta)
    for number, terms in laws.split_by_layer(state.terms):
        yield scalar_record("balance/terms", number, float(terms.mean()))
    if descent is not None:
        yield from neuron_records("balance/predicted_drift", laws, state.predicted_drift(*descent))


def change_records(layers: Sequence[RecordedLayer], initial: ParameterValues) -> Iterator[Record]:
    """Yield the change of weights since initialisation: relative for feature weights, absolute for attention."""
    for number, layer in enumerate(layers, start=1):
        if layer.features:
            relative = relative_change_stats(layer.features, (initial[p] for p in layer.features))
            yield scalar_record("change/features", number, relative.mean)
            yield scalar_record("change/moved", number, relative.moved)
            yield scalar_record("change/moved_half", number, relative.moved_half)
            yield scalar_record("change/unchanged_features", number, relative.unchanged)
        if layer.attention:
            absolute = absolute_change_stats(layer.attention, (initial[p] for p in layer.attention))
            yield scalar_record("change/attention", number, absolute.mean)
            yield scalar_record("change/unchanged_attention", number, absolute.unchanged)


def best_model_records(
    layers: Sequence[RecordedLayer], initial: ParameterValues, best: ParameterValues
) -> Iterator[Record]:
    """Yield the change of weights between initialisation and the best model, with box plots of non-zero changes."""
    for number, layer in enumerate(layers, start=1):
        roles = (("features", layer.features, relative_change), ("attention", layer.attention, absolute_change))
        for role, parameters, change in roles:
            if not parameters:
                continue
            changes = np.concatenate([change(best[p], initial[p]) for p in parameters])
            yield scalar_record(f"best/{role}_unchanged", number, fraction(changes == 0))
            if role == "features":
                yield scalar_record("best/moved", number, fraction(changes > MOVED_THRESHOLD))
                yield scalar_record("best/moved_half", number, fraction(changes > HALF_THRESHOLD))
            nonzero = changes[changes > 0]
            if len(nonzero):
                stats = box_stats(nonzero)
                yield from (scalar_record(f"best/{role}_{name}", number, value) for name, value in stats.items())


def update_records(layers: Sequence[RecordedLayer], before: ParameterValues) -> Iterator[Record]:
    """Yield ‖θ(t+1) − θ(t)‖ / ‖θ(t)‖ of the last step."""
    for number, layer in enumerate(layers, start=1):
        size = update_size(layer.parameters, [before[p] for p in layer.parameters])
        yield scalar_record("update/size", number, size)


def representation_records(calls: Mapping[int, LayerCall], cache: GraphCache) -> Iterator[Record]:
    """Yield Dirichlet energy and mean average distance of the layers' outputs."""
    for number, call in calls.items():
        sample = _sample_neighbourhoods(cache, call.edge_index, call.output)
        if sample is not None and call.output is not None:
            measures = smoothness(call.output.index_select(0, sample.nodes), sample.edge_index, sample.num_targets)
            yield scalar_record("representation/dirichlet", number, measures.dirichlet)
            yield scalar_record("representation/mad", number, measures.mad)


def attention_records(
    layers: Sequence[RecordedLayer], calls: Mapping[int, LayerCall], cache: GraphCache
) -> Iterator[Record]:
    """Yield the entropy of attention, from captured coefficients or recomputed from the layers' inputs."""
    for number, call in calls.items():
        layer, sample = layers[number - 1], _sample_neighbourhoods(cache, call.edge_index, call.x)
        if sample is None or call.x is None or call.extra_inputs or not layer.attention:
            continue
        if call.attention is not None:
            graph, alpha = call.attention.graph, as_array(call.attention.alpha)
            entropy = mean_entropy(alpha, graph.ptr, sample.nodes[: sample.num_targets].numpy())
        else:
            result = attention_scores(
                layer.module, _select_rows(call.x, sample.nodes), sample.edge_index, sample.num_targets
            )
            if result is None:
                continue
            scores, target = result
            complete = target < sample.num_targets  # other nodes of the sample lack some of their neighbours
            entropy = float(attention_entropy(scores[complete], target[complete], sample.num_targets).mean())
        yield scalar_record("attention/entropy", number, entropy)


def neuron_records(quantity: str, laws: BatchedLaws, values: Array) -> Iterator[Record]:
    """Return one record per layer, with one number per neuron of its laws."""
    return (Record(quantity, number, layer_values) for number, layer_values in laws.split_by_layer(values))


def _sample_neighbourhoods(cache: GraphCache, edge_index: Tensor | None, h: Tensor | None) -> Neighbourhoods | None:
    """Return the sample for a layer; None without a graph, nodes, or a matrix ``h`` of node features."""
    if edge_index is None or h is None or h.dim() != 2 or not len(h):
        return None
    sample: Neighbourhoods = cache.get_or_build(edge_index, len(h), lambda: Neighbourhoods.sample(edge_index, len(h)))
    return sample


def _select_rows(x: Tensor, nodes: Tensor) -> Tensor:
    if x.layout == torch.strided:
        return x.index_select(0, nodes)
    rows: Tensor = x.to_sparse_coo().index_select(0, nodes).to_dense()  # type: ignore[no-untyped-call]
    return rows
