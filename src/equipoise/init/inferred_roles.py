"""Roles of parameters whose module is unknown, read off the laws.

Weights on the incoming side of a law write its neurons, those on the outgoing side read them. A *matrix* has an axis
besides that of the neurons:

    =========================================================  =============
    what the laws say about a parameter                        role
    =========================================================  =============
    a matrix that writes neurons, or reads them                ``features``
    a matrix that reads along both axes                        ``query_key``
    a matrix that only such matrices read                      ``query_key``
    reads next to features, without making the output larger   ``attention``
    a vector that writes next to a matrix                      ``bias``
    =========================================================  =============

Query and key of a first layer, about whose other axis no law says anything, are recognised by their equal shapes.
Everything else (scales of norms, packed projections, hypernetworks) has no role and keeps its value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import NamedTuple

from torch import nn

from equipoise.laws.law import Law
from equipoise.laws.probe import Probe
from equipoise.laws.slot import Slot

GROWTH_FACTOR = 1e6  # by which a parameter is multiplied to see whether the output grows with it
GROWTH = 1e3  # a softmax bounds the effect of attention, so that the output stays far below

Grows = Callable[[nn.Parameter], bool]
AxisRange = tuple[int, int]  # first and last axis


class MatrixAxes(NamedTuple):
    """How a parameter is read as one matrix, or as several slices of equal shape.

    Attributes:
        rows: axes that form the rows.
        columns: axes that form the columns.
        slices: the other axes, such as the relations of an RGCN or the taps of a convolution.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    slices: tuple[int, ...] = ()


def matrix_axes(parameter: nn.Parameter, laws: Sequence[Law]) -> MatrixAxes | None:
    """Read a parameter as a matrix by the axes that carry the neurons of laws.

    Args:
        parameter: any parameter.
        laws: the laws of its network.

    Returns:
        The axes; None if no law contains the parameter, or neurons do not run along one or two disjoint axes of it.

    Example:
        >>> import torch
        >>> from equipoise.laws.discover import discover
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> matrix_axes(mlp[2].weight, discover(mlp, torch.randn(5, 3)))
        MatrixAxes(rows=(1,), columns=(0,), slices=())
    """
    slots = [slot for law in laws for slot in law.slots if slot.parameter is parameter]
    if not slots or not all(runs_along_axes(slot) for slot in slots):
        return None
    known = [tuple(range(first, last + 1)) for first, last in dict.fromkeys(slot.axes for slot in slots)]
    rest = tuple(axis for axis in range(parameter.ndim) if not any(axis in axes for axes in known))
    if len(known) == 1:
        return MatrixAxes(known[0], rest)
    disjoint = len(known) == 2 and not set(known[0]) & set(known[1])
    return MatrixAxes(known[0], known[1], rest) if disjoint else None


def runs_along_axes(slot: Slot) -> bool:
    """Whether consecutive indices of whole axes are consecutive neurons, perhaps in blocks or several times over."""
    return slot.groups == 1 and slot.inner == prod(slot.shape[slot.axes[1] + 1 :])


def infer_roles(laws: Sequence[Law], grows: Grows | None = None) -> dict[nn.Parameter, str]:
    """Infer the roles of the parameters in laws.

    Args:
        laws: the laws of a network.
        grows: whether the output grows with a parameter (:func:`output_growth`). Without it, only a vector counts as
            attention.

    Returns:
        The name of a field of :class:`~equipoise.init.layers.ParameterRoles` for each parameter that has a role.

    Example:
        >>> import torch
        >>> from equipoise.laws.discover import discover
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> sorted(infer_roles(discover(mlp, torch.randn(5, 3))).values())
        ['bias', 'features', 'features']
    """
    sides = _Sides(laws)
    roles = dict.fromkeys(sides.scores, "query_key") | dict.fromkeys(sides.definite, "features")
    for law in laws:
        readers, writers = (dict.fromkeys(slot.parameter for slot in side) for side in (law.outgoing, law.incoming))
        for parameter in readers:
            others = [other for other in readers if other is not parameter]
            if parameter not in roles and sides.has_axes(parameter):
                roles[parameter] = "attention" if sides.is_attention(parameter, others, grows) else "features"
        for parameter in writers:
            if parameter in sides.matrices:
                roles.setdefault(parameter, "features")
            elif sides.has_axes(parameter) and any(other in sides.matrices for other in writers):
                roles.setdefault(parameter, "bias" if _may_be_bias(parameter) else "features")
    return {parameter: role for parameter, role in roles.items() if parameter not in sides.mixed}


class _Sides:
    """What the laws say about the axes of parameters.

    Args:
        laws: the laws.

    Attributes:
        matrices: parameters with an axis besides that of the neurons.
        definite: matrices that read neurons along one axis and write neurons along another.
        scores: matrices whose outputs are multiplied with each other.
        mixed: parameters that read and write along the same axis, such as stacked query, key and value.
    """

    def __init__(self, laws: Sequence[Law]) -> None:
        self._axes = {slot.parameter: matrix_axes(slot.parameter, laws) for law in laws for slot in law.slots}
        self.matrices = {p for p, axes in self._axes.items() if axes is not None and _size(p, axes.columns) > 1}
        self._read = defaultdict[nn.Parameter, set[AxisRange]](set)
        self._written = defaultdict[nn.Parameter, set[AxisRange]](set)
        for law in laws:
            for side, axes in ((law.incoming, self._written), (law.outgoing, self._read)):
                for slot in side:
                    axes[slot.parameter].add(slot.axes)
        self.mixed = {p for p in self._axes if self._read[p] & self._written[p]}
        self.scores = self._find_scores(laws)
        self.definite = {p for p in self.matrices - self.scores if self._read[p] and self._written[p]}

    def has_axes(self, parameter: nn.Parameter) -> bool:
        """Whether the neurons of its laws run along axes of a parameter."""
        return self._axes[parameter] is not None

    def is_attention(self, parameter: nn.Parameter, others: Sequence[nn.Parameter], grows: Grows | None) -> bool:
        """Whether a parameter that only reads, next to ``others``, is attention."""
        if grows is None:
            return parameter not in self.matrices and any(other in self.matrices for other in others)
        features_beside = any(other in self.definite for other in others) or any(map(grows, others))
        return features_beside and not grows(parameter)

    def _find_scores(self, laws: Sequence[Law]) -> set[nn.Parameter]:
        scores = {p for p in self.matrices if len(self._read[p]) > 1 and not self._written[p]}
        for law in laws:
            readers, writers = (
                [s for s in side if s.parameter in self.matrices] for side in (law.outgoing, law.incoming)
            )
            shapes = {(slot.shape, slot.axes) for slot in writers}
            if readers and all(
                slot.parameter in scores or ((slot.shape, slot.axes) in shapes and not self._written[slot.parameter])
                for slot in readers
            ):
                scores |= {slot.parameter for slot in (*readers, *writers)}
        return scores


def output_growth(make_probe: Callable[[], Probe]) -> Grows:
    """A function that tells whether the output of a network grows with a parameter, as with weights of features.

    Args:
        make_probe: makes a probe of the network; called at the first test.

    Returns:
        The function. It runs the network once for each parameter.
    """

    @cache
    def reference() -> tuple[Probe, dict[nn.Parameter, str], float]:
        probe = make_probe()
        probe.randomize(0.5)
        names = {probe.model.get_parameter(name): name for name in probe.parameters}
        return probe, names, _output_norm(probe)

    @cache
    def grows(parameter: nn.Parameter) -> bool:
        probe, names, before = reference()
        value = probe.parameters[names[parameter]]
        saved = value.detach().clone()
        value.data.mul_(GROWTH_FACTOR)
        after = _output_norm(probe)
        value.data.copy_(saved)
        return not after < GROWTH * before

    return grows


def _output_norm(probe: Probe) -> float:
    return float(probe.forward(gated=False).detach().norm())


def _may_be_bias(parameter: nn.Parameter) -> bool:
    """Whether a parameter of one entry per neuron is a bias; with a second axis, of size one, it may be a weight."""
    return parameter.ndim == 1 or not bool(parameter.any())


def _size(parameter: nn.Parameter, axes: Sequence[int]) -> int:
    return prod(parameter.shape[axis] for axis in axes)
