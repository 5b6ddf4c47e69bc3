"""Discovery and verification of rescaling laws, from gradients alone.

If a rescaling by λ leaves the network's function unchanged, then ⟨θ, ∇θ⟩ summed over the slots that scale with λ equals
⟨θ, ∇θ⟩ summed over the slots that scale with 1/λ, for any loss, input and parameters. The search collects these
products in a matrix with one column per candidate slot and one row per sample and neuron. Laws are null vectors of that
matrix with entries −1, 0 and 1. Every law found is verified: rescaling by it must not change the output. The search
knows no layer types, so it works on any differentiable network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.laws.candidates import GradientProducts, candidate_widths, merge_blocks, slots_overlap
from equipoise.laws.law import Law, check_laws
from equipoise.laws.nullspace import integer_null_vectors, pivot_columns, sparsify
from equipoise.laws.probe import Probe
from equipoise.laws.slot import Slot
from equipoise.laws.validation import OutputSelector

SCALE_FREE_TOLERANCE = 1e-11  # a slot is scale-free if ⟨θ,∇θ⟩ is below this fraction of Σ|θ·∇θ|
OUTPUT_TOLERANCE = 1e-9  # maximum relative change of the output under a law
MAX_WHOLE_PARAMETERS = 96  # a sample gives only one row per whole parameter, so more would take too many samples
VERIFICATION_ATTEMPTS = 3

Terms = list[tuple[int, Slot]]


def discover(model: nn.Module, *inputs: Any, output: OutputSelector | None = None, **kwargs: Any) -> list[Law]:
    """Find every rescaling law of a model.

    A law multiplies the incoming weights of neuron i by λ_i and its outgoing weights by 1/λ_i without changing the
    function. The search runs on a float64 copy with random parameters. The model, its gradients, buffers and training
    mode, and the global random state do not change. Laws do not depend on the data, so small inputs suffice (a few
    dozen nodes).

    Args:
        model: Any network. Laws are those of its current mode (training or evaluation).
        inputs: Positional arguments of the model. Floating-point entries are perturbed but keep their sign.
        output: Function that selects the tensor to differentiate if the model does not return a single tensor.
        kwargs: Keyword arguments of the model.

    Returns:
        The laws, ordered from input to output. Each was verified by rescaling with random λ in [1/4, 4], with a
        relative change of the output of at most 1e-9.

    Raises:
        ModelError: The model is not a module, has lazy parameters, nothing to train, or cannot be copied.
        ForwardError: The model fails on the inputs.
        OutputError: The output is not a finite, differentiable tensor.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> for law in eq.discover(mlp, torch.randn(5, 3)):
        ...     print(law)
        0.weight[i,:] + 0.bias[i] = 2.weight[:,i]   (4 neurons)
    """
    return search(Probe(model, inputs, kwargs, output)).laws


def verify(
    model: nn.Module, laws: Sequence[Law], *inputs: Any, output: OutputSelector | None = None, **kwargs: Any
) -> list[float]:
    """Measure by how much rescaling along each law changes the output.

    Rescales a float64 copy with random parameters by random λ in [1/4, 4]; the model itself does not change.

    Args:
        model: The network to rescale.
        laws: Laws of this model, or of another one with the same parameter names and shapes.
        inputs: Positional arguments of the model.
        output: Function that selects the tensor to compare if the model does not return a single tensor.
        kwargs: Keyword arguments of the model.

    Returns:
        The relative change of the output, one number per law, about 1e-15 if the law holds, much larger otherwise.

    Raises:
        LawError: ``laws`` is not a list of laws, or a law does not match the model.
        ModelError: The model is not a module, has lazy parameters, nothing to train, or cannot be copied.
        ForwardError: The model fails on the inputs.
        OutputError: The output is not a finite, differentiable tensor.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> x = torch.randn(5, 3)
        >>> max(eq.verify(mlp, eq.discover(mlp, x), x)) < 1e-12
        True
    """
    probe = Probe(model, inputs, kwargs, output)
    probe.randomize()
    return [output_change(probe, [law]) for law in check_laws(laws)]


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


def search(probe: Probe) -> SearchResult:
    """Find all laws of the probe's network, wide layers before narrow ones and whole axes before windows."""
    products, result = GradientProducts(probe), SearchResult()
    for neurons in candidate_widths(products.shapes):
        slots = [slot for slot in products.full_slots(neurons) if not result.covers(slot)]
        known = _add_laws(result, products, slots, known=[])
        windows = [slot for slot in products.window_slots(neurons) if slot not in slots and not result.covers(slot)]
        if windows:
            _add_laws(result, products, slots + windows, known)
    _add_laws(result, products, *_whole_parameters(products, result))
    result.laws.sort(key=lambda law: min(products.sort_key(slot) for slot in law.incoming))
    return result


def _whole_parameters(products: GradientProducts, result: SearchResult) -> tuple[list[Slot], list[Terms]]:
    """Select the parameters to search as slots of one neuron.

    These are the parameters without a law; all of them if there are scalars to balance or frozen parameters in between.

    Args:
        products: Gradient products of the network.
        result: Laws found so far.

    Returns:
        The slots, and the laws found so far as terms of these slots (summed over neurons).
    """
    slots = {slot.name: slot for slot in products.whole_parameters()}
    frozen = any(not parameter.requires_grad for parameter in products.probe.copy.parameters())
    if not frozen and all(prod(slot.shape) > 1 for slot in slots.values()):
        in_laws = {slot.name for law in result.laws for slot in law.slots}
        slots = {name: slot for name, slot in slots.items() if name not in in_laws}
    laws = [law for law in result.laws if all(s.neurons == s.length and s.name in slots for s in law.slots)]
    known = [[(sign, slots[slot.name]) for sign, slot in law.terms] for law in laws]
    return (list(slots.values()), known) if len(slots) <= MAX_WHOLE_PARAMETERS else ([], [])


def _add_laws(result: SearchResult, products: GradientProducts, slots: list[Slot], known: list[Terms]) -> list[Terms]:
    """Search the laws among ``slots`` and add them to ``result``.

    Args:
        result: Extended in place by verified laws and by boundary groups.
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
        scale = float(products.absolute_column(slot).norm())
        if float(columns[slot].norm()) <= SCALE_FREE_TOLERANCE * scale:
            del columns[slot]
            # A scale of 0 is no law: e.g. rows of an embedding that no input looks up.
            relations += [[(1, slot)]] if scale else []
    if len(columns) > 1:
        null_vectors = integer_null_vectors(torch.stack(list(columns.values()), dim=1))
        relations += [list(zip(vector, columns, strict=True)) for vector in null_vectors]
    vectors = sparsify([_to_vector(terms, slots) for terms in relations], known_vectors, boundary=len(boundary))
    relations = [[(sign, slot) for sign, slot in zip(vector, slots, strict=True) if sign] for vector in vectors]
    hidden = [terms for terms in relations if not any(slot in boundary for _, slot in terms)]
    result.boundary += [tuple(slot for _, slot in terms) for terms in relations if terms not in hidden]
    result.laws += _verified(products.probe, [_to_law(terms, products) for terms in hidden])
    return relations


def _to_vector(terms: Terms, slots: list[Slot]) -> list[int]:
    signs = {slot: sign for sign, slot in terms}
    return [signs.get(slot, 0) for slot in slots]


def _to_law(terms: Terms, products: GradientProducts) -> Law:
    """Convert terms to a law; the side that the forward pass reads first is incoming.

    If both sides are read in parallel (keys and queries: same shape and axis), the side registered first is incoming.

    Args:
        terms: Slots with their signs.
        products: Gradient products of the network, for the order of slots.

    Returns:
        The law, with complete sets of blocks merged.
    """
    order = sorted(terms, key=lambda term: products.sort_key(term[1]))
    sides = [[slot for sign, slot in order if sign == side] for side in (order[0][0], -order[0][0])]
    largest = [max(side, key=lambda slot: prod(slot.shape)) for side in sides if side]
    if len(largest) == 2 and len({(slot.inner, slot.shape) for slot in largest}) == 1:
        names = list(products.probe.parameters)
        sides.sort(key=lambda side: min((names.index(slot.name), slot.start) for slot in side))
    return Law(tuple(merge_blocks(sides[0])), tuple(merge_blocks(sides[1])))


def _verified(probe: Probe, laws: list[Law]) -> list[Law]:
    """Filter the laws that leave the output unchanged: tests all at once, and one by one only if that fails."""
    if not laws or output_change(probe, laws) <= OUTPUT_TOLERANCE:
        return laws
    return [law for law in laws if _holds(probe, law)]


def _holds(probe: Probe, law: Law) -> bool:
    """Whether a law leaves the output unchanged; retries with new parameters, since an output near zero fails."""
    for _ in range(VERIFICATION_ATTEMPTS):
        if output_change(probe, [law]) <= OUTPUT_TOLERANCE:
            return True
        probe.randomize()
    return False


@torch.no_grad()
def output_change(probe: Probe, laws: Sequence[Law]) -> float:
    """Rescale along all laws at once by random λ in [1/4, 4] and measure the change of the probe's output.

    Args:
        probe: Probe to rescale; its parameters are restored afterwards.
        laws: Laws to apply.

    Returns:
        The relative change: the larger one of a forward pass with gates, where deep layers affect the output as much as
        the last, and one without, which is the network itself.
    """
    saved = {name: parameter.detach().clone() for name, parameter in probe.parameters.items()}
    before = [_detached_output(probe, gated) for gated in (True, False)]
    try:
        for law in laws:
            exponents = 2.0 * torch.rand(law.neurons, generator=probe.generator, dtype=torch.float64) - 1.0
            law.bind(probe.copy).rescale_(4.0**exponents)
        after = [_detached_output(probe, gated) for gated in (True, False)]
    finally:
        for name, parameter in probe.parameters.items():
            parameter.copy_(saved[name])
    return max(float((new - old).abs().max() / old.abs().max()) for new, old in zip(after, before, strict=True))


def _detached_output(probe: Probe, gated: bool) -> Tensor:
    with torch.enable_grad():  # the probe requires its output to be differentiable
        return probe.forward(gated).detach()
