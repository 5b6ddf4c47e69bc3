"""Initialisation of any network along its laws, where the layers do not form a chain.

Roles of parameters come from :func:`~equipoise.init.layers.roles_of` where a module is known, and from the laws
(:mod:`equipoise.init.inferred_roles`) where it is not. The laws tell which rows of a weight matrix write hidden neurons
and which columns read them:

    row i is incoming in a law        the matrix writes hidden neuron i
    column i is outgoing in a law     the matrix reads hidden neuron i

:func:`draw_network` draws the matrices in blocks that match, and :func:`balance_along_laws` is the paper's procedure
with the order and the norms taken from the laws instead of from a chain of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import torch
import torch_geometric.nn as pyg
from torch import Generator, Tensor, nn

from equipoise.errors import BalanceError
from equipoise.init.balance import ParameterValues, check_direction, initial_norms
from equipoise.init.inferred_roles import Grows, MatrixAxes, infer_roles, matrix_axes, runs_along_axes
from equipoise.init.layers import ParameterRoles, Parameters, roles_of
from equipoise.init.matrices import Position, looks_linear, normal, orthogonal, xavier
from equipoise.laws.law import Law
from equipoise.laws.slot import Slot

if TYPE_CHECKING:
    from equipoise.init.schemes import Scheme

QUERY_KEY_GAIN = 0.3  # relative to orthogonal matrices (docs/guide/initialisation.md, "Graph transformers")


def network_roles(model: nn.Module, laws: Sequence[Law], grows: Grows | None = None) -> ParameterRoles:
    """Return the roles of all parameters of a network.

    Known layers determine the roles of their parameters, the laws those of all others; some have none. A linear module
    outside a known layer is what the laws say: a layer, a projection to queries, or the scores of attention.

    A learned skip is zero at initialisation. If it is all that one side of a law has, it is a feature weight instead:
    a hidden neuron that nothing reads, or that reads nothing, could not be balanced.

    Args:
        model: any network.
        laws: its laws.
        grows: the test of :func:`~equipoise.init.inferred_roles.infer_roles`.

    Returns:
        The roles; ``heads`` and ``concat`` have no meaning for a whole network.
    """
    groups: dict[str, dict[nn.Parameter, None]] = {name: {} for name in ROLE_NAMES}
    assigned: set[nn.Parameter] = set()
    linear: set[nn.Parameter] = set()
    for module in model.modules():  # outer modules first: a layer's roles have precedence over those of its parts
        roles = roles_of(module)
        if roles is None:
            continue
        # Like a skip, a second feature matrix (W_t, which only takes part in attention scores) is zero if balanced.
        roles = replace(roles, features=roles.features[:1], skip=roles.features[1:] + roles.skip)
        if isinstance(module, nn.Linear | pyg.Linear):
            linear |= {parameter for parameter in roles.features if parameter not in assigned}
        for name in ROLE_NAMES:
            parameters = [parameter for parameter in getattr(roles, name) if parameter not in assigned]
            groups[name] |= dict.fromkeys(parameters)
            assigned.update(parameters)
    if not assigned - linear >= set(model.parameters()):
        inferred = infer_roles(laws, grows)
        for parameter in model.parameters():
            role = inferred.get(parameter)
            if role is not None and parameter not in assigned:
                groups[role][parameter] = None
                assigned.add(parameter)
            elif parameter in linear and role in ("attention", "query_key"):
                del groups["features"][parameter]
                groups[role][parameter] = None
    for law in laws:
        for side in (law.incoming, law.outgoing):
            members = dict.fromkeys(slot.parameter for slot in side)
            if not any(p in groups["features"] or p not in assigned for p in members):
                skips = {parameter: None for parameter in members if parameter in groups["skip"]}
                groups["features"] |= skips
                groups["skip"] = {p: None for p in groups["skip"] if p not in skips}
    return ParameterRoles(**{name: tuple(group) for name, group in groups.items()})  # type: ignore[arg-type]


ROLE_NAMES = ("features", "attention", "skip", "bias", "ones", "query_key")


def draw_network(
    roles: ParameterRoles, laws: Sequence[Law], scheme: Scheme, generator: Generator | None
) -> ParameterValues:
    """Draw every parameter with a role by a scheme.

    Feature weights consist of one block per group of hidden neurons that they write or read. Looks-linear blocks mirror
    the neurons of a law; a law with an odd number of neurons, such as one per class, is not mirrored. Query and key
    are small, attention vectors, learned skips and biases as in a chain.

    Args:
        roles: roles of all parameters.
        laws: the laws.
        scheme: the scheme.
        generator: source of random numbers; None for torch's global generator.

    Returns:
        A float64 value for each parameter.
    """
    values = {W: _draw_matrix(W, laws, scheme, generator) for W in roles.features}
    for W in roles.query_key:
        draw = orthogonal if scheme.looks_linear else xavier
        gain = 1.0 if scheme.attention else QUERY_KEY_GAIN
        values[W] = gain * _draw_slices(W, _axes_of(W, laws), partial(draw, generator=generator))
    values |= draw_other_roles(roles, scheme, generator)
    return {parameter: value.double() for parameter, value in values.items()}


def draw_other_roles(roles: ParameterRoles, scheme: Scheme, generator: Generator | None) -> ParameterValues:
    """Draw attention vectors, learned skips, biases and parameters that are one."""
    values: ParameterValues = {}
    for a in roles.attention:
        std = (2.0 / sum(a.shape[-2:])) ** 0.5 if a.ndim > 1 else (2.0 / (1 + len(a))) ** 0.5
        values[a] = normal(*a.shape, std=std, generator=generator) if scheme.attention else torch.zeros(a.shape)
    zero_skip = scheme.balanced or scheme.looks_linear
    for skip in roles.skip:
        values[skip] = torch.zeros(skip.shape) if zero_skip else xavier(skip.shape[0], skip.shape[1], generator)
    values |= {bias: torch.zeros(bias.shape) for bias in roles.bias}
    values |= {parameter: torch.ones(parameter.shape) for parameter in roles.ones}
    return values


@dataclass(frozen=True)
class _Block:
    """Consecutive rows or columns of a matrix: the neurons of one law, or features that belong to no law."""

    start: int
    size: int
    hidden: bool

    @property
    def mirrored(self) -> bool:
        return self.hidden and self.size % 2 == 0


def _axes_of(W: nn.Parameter, laws: Sequence[Law]) -> MatrixAxes:
    axes = None if W.ndim == 2 else matrix_axes(W, laws)
    return MatrixAxes((0,), (1,)) if axes is None else axes


def _draw_slices(W: nn.Parameter, axes: MatrixAxes, draw: Callable[[int, int], Tensor]) -> Tensor:
    """Draw a parameter as one matrix, or as several slices whose sum has the size of one."""
    order = (*axes.slices, *axes.rows, *axes.columns)
    slices, rows, columns = (prod(W.shape[axis] for axis in group) for group in (axes.slices, axes.rows, axes.columns))
    drawn = torch.stack([draw(rows, columns) for _ in range(slices)])
    inverse = sorted(range(W.ndim), key=order.__getitem__)
    return drawn.div(slices**0.5).reshape([W.shape[axis] for axis in order]).permute(inverse).contiguous()


def _blocks(W: nn.Parameter, laws: Sequence[Law], axes: Sequence[int]) -> list[_Block]:
    """Divide some axes of a parameter, read as one, by the laws that contain them."""
    size = prod(W.shape[axis] for axis in axes)
    if not axes:
        return [_Block(0, 1, hidden=False)]
    slots = {slot for law in laws for slot in law.slots if slot.parameter is W and slot.axes == (axes[0], axes[-1])}
    starts = {
        fold * slot.length + slot.start: slot.neurons
        for slot in slots
        if runs_along_axes(slot)
        for fold in range(size // slot.length)
    }
    blocks, end = list[_Block](), 0
    for start in sorted(starts):
        if start > end:
            blocks.append(_Block(end, start - end, hidden=False))
        blocks.append(_Block(start, starts[start], hidden=True))
        end = start + starts[start]
    if end < size:
        blocks.append(_Block(end, size - end, hidden=False))
    return blocks


def _draw_matrix(W: nn.Parameter, laws: Sequence[Law], scheme: Scheme, generator: Generator | None) -> Tensor:
    axes = _axes_of(W, laws)
    rows, columns = _blocks(W, laws, axes.rows), _blocks(W, laws, axes.columns)
    hidden = any(block.hidden for block in rows) and any(block.hidden for block in columns)
    draw = scheme.hidden if hidden else scheme.ends

    def draw_slice(height: int, width: int) -> Tensor:
        if draw is xavier and not scheme.looks_linear:
            return xavier(height, width, generator)
        if not scheme.looks_linear:
            return torch.cat([torch.cat([draw(r.size, c.size, generator) for c in columns], dim=1) for r in rows])
        mirrored = ([looks_linear(draw, r.size, c.size, _position(r, c), generator) for c in columns] for r in rows)
        return torch.cat([torch.cat(row, dim=1) for row in mirrored])

    return _draw_slices(W, axes, draw_slice)


def _position(rows: _Block, columns: _Block) -> Position:
    if rows.mirrored:
        return "hidden" if columns.mirrored else "first"
    return "last" if columns.mirrored else "only"


def balance_along_laws(
    laws: Sequence[Law], features: Parameters, values: ParameterValues, beta: float | Tensor, direction: str
) -> None:
    """Apply the paper's procedure to the feature weights, in the order of the laws.

    Forward: weights that read the network's input get squared norm β in total; then the weights that read the neurons
    of a law, taken together, get the norm of those that write them. Reverse: from the output. A law that has a weight
    on both sides (the stream of identity skips) is left as it is. Attention and norm layers keep their share, so a
    rescaling along the laws has to follow.

    Args:
        laws: the laws, ordered from input to output.
        features: feature weights.
        values: a float64 value for each parameter with a role; modified.
        beta: squared norm at the input (``"reverse"``: at the output).
        direction: ``"forward"`` or ``"reverse"``.

    Raises:
        ChoiceError: if ``direction`` is unknown.
    """
    check_direction(direction)
    forward = direction == "forward"
    for law in laws if forward else reversed(laws):
        sides = (law.incoming, law.outgoing) if forward else (law.outgoing, law.incoming)
        near, far = (_features(side, features) for side in sides)
        if not near or not far or {s.parameter for s in near} & {s.parameter for s in far}:
            continue
        if first := [slot for slot in near if not _is_fed(slot, laws, forward)]:
            _scale(first, values, initial_norms(beta, law.neurons), law)
        _scale(far, values, _norms(near, values), law)


def _features(slots: Sequence[Slot], features: Parameters) -> list[Slot]:
    return [slot for slot in slots if any(slot.parameter is W for W in features)]


def _is_fed(slot: Slot, laws: Sequence[Law], forward: bool) -> bool:
    """Whether the other axis of a slot's matrix belongs to a law, so that an earlier step has set its norm."""
    return any(
        other.parameter is slot.parameter and other.axes != slot.axes
        for law in laws
        for other in (law.outgoing if forward else law.incoming)
    )


def _norms(slots: Sequence[Slot], values: ParameterValues) -> Tensor:
    return torch.stack([slot.sum_per_neuron(values[slot.parameter].square()) for slot in slots]).sum(dim=0)


def _scale(slots: Sequence[Slot], values: ParameterValues, desired: Tensor, law: Law) -> None:
    """Scale slots, taken together, to the squared norms ``desired``."""
    norms = _norms(slots, values)
    bad = (~(norms > 0) | ~norms.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise BalanceError(
            f"neuron {bad[0]} has feature weights of norm {float(norms[bad[0]])}, which cannot be rescaled",
            where=f"{law} ({len(bad)} of {len(norms)} neurons)",
            remedy="choose a scheme that gives every neuron non-zero weights, such as bal-o",
        )
    factors = (desired / norms).sqrt()
    for slot in slots:
        values[slot.parameter] = values[slot.parameter] * slot.broadcast(factors, fill_value=1.0)
