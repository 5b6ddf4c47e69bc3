"""The search: laws as null vectors of the matrix of gradient products.

If a rescaling by λ leaves the network's function unchanged, then Σ_k n_k ⟨θ_k, ∇θ_k⟩ = 0 over its slots, for any loss,
input and parameters. The search collects these products in a matrix with one column per candidate slot and one row per
sample and neuron. Laws are null vectors of that matrix with small integer entries. The search knows no layer types, so
it works on any differentiable network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import torch

from equipoise.laws.candidates import all_blocks, candidate_widths, merge_blocks, slots_overlap
from equipoise.laws.law import Law
from equipoise.laws.nullspace import integer_null_vectors, pivot_columns, sparsify
from equipoise.laws.probe import Probe
from equipoise.laws.products import GradientProducts
from equipoise.laws.progress import Progress
from equipoise.laws.slot import Slot
from equipoise.laws.verification import confirmed, plausible

MAX_WHOLE_PARAMETERS = 96  # a sample gives only one row per whole parameter, so more would take too many samples

Terms = list[tuple[int, Slot]]


@dataclass
class SearchResult:
    """Result of a search.

    Attributes:
        laws: The laws, ordered from input to output.
        boundary: Groups of slots that only a rescaling of the network's input or output would balance. Their neurons
            are not hidden, so they have no law.
    """

    laws: list[Law] = field(default_factory=list)
    boundary: list[tuple[Slot, ...]] = field(default_factory=list)

    def covers(self, slot: Slot) -> bool:
        """Whether a law or a boundary group already contains these neurons of the parameter."""
        groups = [law.slots for law in self.laws] + self.boundary
        return any(slots_overlap(slot, other) for group in groups for other in group)


def search(probe: Probe, progress: Progress, thorough: bool = True) -> SearchResult:
    """Find all laws of the probe's network, wide layers before narrow ones and whole axes before windows.

    Args:
        probe: Probe of the network.
        progress: Display of the progress.
        thorough: Whether to search laws of whole parameters, too, and to verify laws at several random parameters, at
            the model's own and at several scales of the inputs. Without it, laws only pass a quick test.

    Returns:
        The laws and the boundary groups.
    """
    products, result = GradientProducts(probe), SearchResult()
    widths = candidate_widths(products.shapes, products.blocks)
    for number, neurons in enumerate(widths):
        progress.update(f"width {neurons} ({number + 1} of {len(widths)})")
        slots = [slot for slot in products.full_slots(neurons) if not result.covers(slot)]
        known = _add_laws(result, products, slots, known=[])
        windows = [slot for slot in products.window_slots(neurons) if slot not in slots and not result.covers(slot)]
        if windows:
            # A fold is the sum of its blocks: together they would give relations that say nothing.
            slots = [slot for slot in slots if not set(all_blocks(slot)) <= {*windows, *slots} - {slot}]
            known = [terms for terms in known if all(slot in slots for _, slot in terms)]
            _add_laws(result, products, slots + windows, known)
    if thorough:
        _add_laws(result, products, *_whole_parameters(products, result))
        progress.update("verification")
        result.laws = confirmed(probe, result.laws)
    result.laws.sort(key=lambda law: min(products.sort_key(slot) for slot in law.incoming))
    return result


def _whole_parameters(products: GradientProducts, result: SearchResult) -> tuple[list[Slot], list[Terms]]:
    """Select the parameters to search as slots of one neuron.

    These are the parameters without a law; all of them if there are scalars to balance or frozen parameters in between.
    A scalar that cancels, such as the bias of attention scores, is none.

    Args:
        products: Gradient products of the network.
        result: Laws found so far.

    Returns:
        The slots, and the laws found so far as terms of these slots (summed over neurons).
    """
    slots = {slot.name: slot for slot in products.whole_parameters()}
    frozen = any(not parameter.requires_grad for parameter in products.probe.copy.parameters())
    scalars = [name for name, slot in slots.items() if prod(slot.shape) == 1]
    if not frozen and not products.probe.depends_on(scalars):
        in_laws = {slot.name for law in result.laws for slot in law.slots}
        slots = {name: slot for name, slot in slots.items() if name not in in_laws}
    laws = [law for law in result.laws if all(s.covers_parameter and s.name in slots for s in law.slots)]
    known = [[(exponent, slots[slot.name]) for exponent, slot in law.terms] for law in laws]
    return (list(slots.values()), known) if len(slots) <= MAX_WHOLE_PARAMETERS else ([], [])


def _add_laws(result: SearchResult, products: GradientProducts, slots: list[Slot], known: list[Terms]) -> list[Terms]:
    """Search the laws among ``slots`` and add them to ``result``.

    Args:
        result: Extended in place by plausible laws and by boundary groups.
        products: Gradient products of the network.
        slots: Candidate slots with equal numbers of neurons.
        known: Relations that are known already; their linear combinations are not searched again.

    Returns:
        All new relations, including those of the boundary.
    """
    slots = sorted(slots, key=products.sort_key)
    boundary = {slot for slot in slots if slot.name not in products.probe.parameters}
    if len(boundary) == len(slots):
        return []
    known_vectors = [_to_vector(terms, slots) for terms in known]
    redundant = pivot_columns(known_vectors)
    candidates = [slot for number, slot in enumerate(slots) if number not in redundant]
    products.draw_samples_for(candidates)
    columns = {slot: products.column(slot) for slot in candidates}
    relations: list[Terms] = []
    for slot in candidates:
        if products.is_scale_free(slot, columns[slot]):
            del columns[slot]
            # A sum of 0 is no law: e.g. rows of an embedding that no input looks up.
            relations += [[(1, slot)]] if products.absolute_sum(slot) else []
    if len(columns) > 1:
        null_vectors = integer_null_vectors(torch.stack(list(columns.values()), dim=1))
        relations += [list(zip(vector, columns, strict=True)) for vector in null_vectors]
    vectors = sparsify([_to_vector(terms, slots) for terms in relations], known_vectors, boundary=len(boundary))
    relations = [[(sign, slot) for sign, slot in zip(vector, slots, strict=True) if sign] for vector in vectors]
    hidden = [terms for terms in relations if not any(slot in boundary for _, slot in terms)]
    result.boundary += [tuple(merge_blocks([slot for _, slot in terms])) for terms in relations if terms not in hidden]
    result.laws += _without_overlap(plausible(products.probe, [_to_law(terms, products) for terms in hidden]))
    return relations


def _to_vector(terms: Terms, slots: list[Slot]) -> list[int]:
    signs = {slot: sign for sign, slot in terms}
    return [signs.get(slot, 0) for slot in slots]


def _to_law(terms: Terms, products: GradientProducts) -> Law:
    """Convert terms to a law; the side that the forward pass reads first is incoming.

    If both sides are read in parallel (keys and queries: same shape and axis), the side registered first is incoming.

    Args:
        terms: Slots with their exponents.
        products: Gradient products of the network, for the order of slots.

    Returns:
        The law, with complete sets of blocks merged.
    """
    order = sorted(terms, key=lambda term: products.sort_key(term[1]))
    first = 1 if order[0][0] > 0 else -1
    sides = [[(abs(n), slot) for n, slot in order if (n > 0) == (side > 0)] for side in (first, -first)]
    largest = [max((slot for _, slot in side), key=lambda slot: prod(slot.shape)) for side in sides if side]
    if len(largest) == 2 and len({(slot.inner, slot.shape) for slot in largest}) == 1:
        names = list(products.probe.parameters)
        sides.sort(key=lambda side: min((names.index(slot.name), slot.start) for _, slot in side))
    merged = [_merge_blocks(side) for side in sides]
    incoming, outgoing = (tuple(slot for _, slot in side) for side in merged)
    return Law(incoming, outgoing, tuple(exponent for side in merged for exponent, _ in side))


def _merge_blocks(side: Terms) -> Terms:
    """Merge complete sets of blocks with equal exponents, in the order of the first block."""
    exponents = dict.fromkeys(exponent for exponent, _ in side)
    merged = [(n, slot) for n in exponents for slot in merge_blocks([slot for m, slot in side if m == n])]
    order = {slot.name: number for number, (_, slot) in reversed(list(enumerate(side)))}
    return sorted(merged, key=lambda term: order[term[1].name])


def _without_overlap(laws: list[Law]) -> list[Law]:
    """Drop laws with a window that overlaps a window of a law before it without being the same."""
    kept: list[Law] = []
    for law in laws:
        others = [slot for other in kept for slot in other.slots]
        if not any(slots_overlap(a, b) and a != b for a in law.slots for b in others):
            kept.append(law)
    return kept
