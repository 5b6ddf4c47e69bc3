"""Every rescaling law of any network, from its gradients alone.

If a rescaling by λ changes nothing, then ⟨θ, ∇θ⟩ summed over what rises equals ⟨θ, ∇θ⟩ summed over what falls, for any
loss, input and parameters. So collect these products for every way to read every parameter neuron by neuron, one column
a slot, one row a sample and neuron: the laws are the null vectors of that matrix. No layer types are known here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn

from equipoise.laws.candidates import folded, overlap, widths
from equipoise.laws.checks import Output
from equipoise.laws.law import Law
from equipoise.laws.nullspace import integer_null_vectors, pivots, shorten
from equipoise.laws.probe import Probe
from equipoise.laws.samples import Samples
from equipoise.laws.slot import Slot
from equipoise.laws.verify import TOLERANCE, change

SCALE_FREE = 1e-11  # ⟨θ,∇θ⟩ below this fraction of Σ|θ·∇θ| is zero: the slot has a law of its own
MOST_WHOLE = 96  # parameters compared as wholes; a sample gives one row there, so more would take long

Terms = list[tuple[int, Slot]]


def discover(model: nn.Module, *inputs: Any, output: Output | None = None, **kwargs: Any) -> list[Law]:
    """Find every rescaling law of ``model``, ordered from input to output.

    Works on a float64 copy with random parameters; the model, its gradients, buffers, mode and the random state are as
    before. Laws do not depend on the data, so small inputs do (a few dozen nodes are plenty).

    Args:
        model: any network; its laws are those of the mode (training or evaluation) that it is in.
        inputs: what the model is called with; floating entries are varied, never set to another sign.
        output: picks the tensor to differentiate where the model returns more than one.
        kwargs: what the model is called with by name.

    Returns:
        Laws that were confirmed by rescaling: with random λ in [1/4, 4] the output stays equal to 1e-9.

    Example:
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> for law in discover(mlp, torch.randn(5, 3)):
        ...     print(law)
        0.weight[i,:] + 0.bias[i] = 2.weight[:,i]   (4 neurons)
    """
    return search(Probe(model, inputs, kwargs, output)).laws


@dataclass
class Findings:
    """What a search came back with.

    Attributes:
        laws: the laws, ordered from input to output.
        boundary: slots that a rescaling of the network's own input or output would balance: not hidden, so no law.
    """

    laws: list[Law] = field(default_factory=list)
    boundary: list[tuple[Slot, ...]] = field(default_factory=list)

    def covers(self, slot: Slot) -> bool:
        """Whether a law, or the input or output, already accounts for these neurons of the parameter."""
        return any(overlap(slot, other) for other in self.slots_of(slot.name))

    def slots_of(self, name: str) -> list[Slot]:
        """All slots of one parameter that take part in anything found."""
        groups = [law.slots for law in self.laws] + self.boundary
        return [slot for group in groups for slot in group if slot.name == name]


def search(probe: Probe) -> Findings:
    """All laws of the probe's network: many neurons before few, whole axes before parts of them."""
    samples, findings = Samples(probe), Findings()
    for neurons in widths(samples.shapes):
        slots = [slot for slot in samples.slots(neurons) if not findings.covers(slot)]
        known = _solve(samples, slots, [], findings)
        parts = [slot for slot in samples.windows(neurons) if slot not in slots and not findings.covers(slot)]
        if parts:
            _solve(samples, slots + parts, known, findings)
    _solve(samples, *_wholes(samples, findings), findings)
    findings.laws.sort(key=lambda law: min(samples.place(slot) for slot in law.incoming))
    return findings


def _wholes(samples: Samples, findings: Findings) -> tuple[list[Slot], list[Terms]]:
    """Parameters to compare as wholes, and what is known of them: the laws above, summed over neurons.

    Those that no law mentions; all, where there are scalars to be balanced or frozen parameters in the way.
    """
    slots = {slot.name: slot for slot in samples.whole()}
    frozen = any(not parameter.requires_grad for parameter in samples.probe.copy.parameters())
    if not frozen and all(prod(slot.shape) > 1 for slot in slots.values()):
        in_laws = {slot.name for law in findings.laws for slot in law.slots}
        slots = {name: slot for name, slot in slots.items() if name not in in_laws}
    sums = [law for law in findings.laws if all(s.neurons == s.length and s.name in slots for s in law.slots)]
    known = [[(sign, slots[slot.name]) for sign, slot in law.terms] for law in sums]
    return (list(slots.values()), known) if len(slots) <= MOST_WHOLE else ([], [])


def _solve(samples: Samples, slots: list[Slot], known: list[Terms], findings: Findings) -> list[Terms]:
    """Add the laws among ``slots`` to the findings, but for what follows from ``known`` ones; returns what it found."""
    slots = sorted(slots, key=samples.place)
    outside = {slot for slot in slots if slot.name not in samples.probe.parameters}
    if len(outside) == len(slots):
        return []
    vectors = [_vector(terms, slots) for terms in known]
    spent = pivots(vectors)
    unspent = [slot for number, slot in enumerate(slots) if number not in spent]
    samples.grow(unspent)
    columns = {slot: samples.column(slot) for slot in unspent}
    found: list[Terms] = []
    for slot in unspent:
        size = float(samples.magnitude(slot).norm())
        if float(columns[slot].norm()) <= SCALE_FREE * size:
            del columns[slot]
            found += [[(1, slot)]] if size else []  # no law: rows that no input looks up
    if len(columns) > 1:
        null = integer_null_vectors(torch.stack(list(columns.values()), dim=1))
        found += [list(zip(vector, columns, strict=True)) for vector in null]
    short = shorten([_vector(terms, slots) for terms in found], vectors, first=len(outside))
    found = [[(sign, slot) for sign, slot in zip(vector, slots, strict=True) if sign] for vector in short]
    inside = [terms for terms in found if not any(slot in outside for _, slot in terms)]
    findings.boundary += [tuple(slot for _, slot in terms) for terms in found if terms not in inside]
    findings.laws += _confirmed(samples.probe, [_law(terms, samples) for terms in inside])
    return found


def _vector(terms: Terms, slots: list[Slot]) -> list[int]:
    signs = {slot: sign for sign, slot in terms}
    return [signs.get(slot, 0) for slot in slots]


def _law(terms: Terms, samples: Samples) -> Law:
    """The terms as a law: incoming is what the network reads first.

    Where both sides are read side by side (keys and queries: the same axis of both), incoming is what is named first.
    """
    order = sorted(terms, key=lambda term: samples.place(term[1]))
    sides = [[slot for sign, slot in order if sign == side] for side in (order[0][0], -order[0][0])]
    largest = [max(side, key=lambda slot: prod(slot.shape)) for side in sides if side]
    if len(largest) == 2 and len({(slot.inner, slot.shape) for slot in largest}) == 1:
        names = list(samples.probe.parameters)
        sides.sort(key=lambda side: min((names.index(slot.name), slot.start) for slot in side))
    return Law(tuple(folded(sides[0])), tuple(folded(sides[1])))


def _confirmed(probe: Probe, laws: list[Law]) -> list[Law]:
    """The laws that leave the output alone; all at once, and one by one only if that fails."""
    if not laws or change(probe, laws) <= TOLERANCE:
        return laws
    return [law for law in laws if _holds(probe, law)]


def _holds(probe: Probe, law: Law) -> bool:
    """Whether one law leaves the output alone; bad luck with the parameters (an output near zero) gets another try."""
    for _ in range(3):
        if change(probe, [law]) <= TOLERANCE:
            return True
        probe.randomize()
    return False
