"""Causes of missing laws, found by ablation where possible and by inspection of the trace otherwise.

A function is the cause if the law appears once the function is replaced by the identity. This needs no list of
functions: the candidates are the calls of the given network that are not positively homogeneous, i.e. for which
f(λx) = λ^k f(x) does not hold for every λ > 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from equipoise.errors import EquipoiseError
from equipoise.laws.probe import Probe
from equipoise.laws.progress import Progress
from equipoise.laws.search import SearchResult, search
from equipoise.laws.slot import Slot
from equipoise.laws.trace import PRODUCT_FUNCTIONS, FunctionCall, Trace

MAX_ABLATIONS = 8
# Cannot be replaced by the identity; gates with sigmoid and tanh are inside.
RECURRENT_FUNCTIONS = {"lstm", "gru", "rnn_tanh", "lstm_cell", "gru_cell", "rnn_tanh_cell"}
SOFTMAX_FUNCTIONS = {"exp", "sub", "softmax"}  # not ablated jointly with others: that would remove attention itself

SlotGroup = tuple[Slot, ...]
Functions = tuple[str, ...]


@dataclass(frozen=True)
class MissingLaw:
    """Hidden neurons without a law, and the cause.

    Attributes:
        weights: Weights that produce these neurons, as slots.
        cause: The cause as text.
        functions: Functions or modules whose ablation restores the law; empty if there are none.
    """

    weights: tuple[Slot, ...]
    cause: str
    functions: Functions = ()

    @property
    def neurons(self) -> int:
        """Number of neurons without a law."""
        return self.weights[0].neurons

    def __str__(self) -> str:
        count = f"{self.neurons} neuron{'s' if self.neurons > 1 else ''}"
        return f"{', '.join(map(str, self.weights))}   ({count}): {self.cause}"


def missing_laws(probe: Probe, result: SearchResult, progress: Progress) -> list[MissingLaw]:
    """Find the weights whose output neurons are hidden but not covered by a law, and determine the cause.

    Args:
        probe: Probe of the network.
        result: Result of the search on this probe.
        progress: Display of the progress.

    Returns:
        One entry per group of weights, in the order in which the forward pass uses them.
    """
    trace = probe.trace_homogeneity()
    uncovered = [slot for slot in _output_slots(probe, trace.calls) if not result.covers(slot)]
    order = {slot.name: number for number, slot in enumerate(uncovered)}
    recurrent = {
        name: call.function for call in trace.calls if call.function in RECURRENT_FUNCTIONS for name, _ in call.reads
    }
    missing = [
        MissingLaw((slot,), f"{recurrent[slot.name]} is not positively homogeneous")
        for slot in uncovered
        if slot.name in recurrent
    ]
    uncovered = [slot for slot in uncovered if slot.name not in recurrent]
    candidates = _ablation_candidates(trace)
    joint = tuple(function for function in candidates if function not in SOFTMAX_FUNCTIONS)
    ablations = [(function,) for function in candidates] + ([joint] if len(joint) > 1 else [])
    groups_after_ablation = cache(lambda functions: _groups_after_ablation(probe, functions, progress))
    for functions in ablations:
        for slot in list(uncovered):
            if slot in uncovered and _in_any_group(slot, groups_after_ablation(functions)):
                minimal = _minimal_ablation(functions, slot, groups_after_ablation)
                group = next(group for group in groups_after_ablation(minimal) if _in_group(slot, group))
                weights = tuple(other for other in uncovered if _in_group(other, group))
                missing.append(MissingLaw(weights, _ablation_cause(minimal, group, trace), minimal))
                uncovered = [other for other in uncovered if other not in weights]
    output_only = {s.name for s in uncovered if s.name in trace.output_weights and trace.use_count(s.name) == 1}
    missing += [MissingLaw((s,), _observed_cause(s, trace, probe)) for s in uncovered if s.name not in output_only]
    return sorted(missing, key=lambda entry: order[entry.weights[0].name])


def _ablation_candidates(trace: Trace) -> list[str]:
    """Names of calls that may be the cause: normalisation modules, then functions, then other modules."""
    modules = [call for call in trace.modules if call.breaks_laws]
    normalisations = [call for call in modules if call.degree == 0]
    calls = normalisations + [call for call in trace.calls if call.breaks_laws] + modules
    return list(dict.fromkeys(call.function for call in calls))[:MAX_ABLATIONS]


def _output_slots(probe: Probe, calls: list[FunctionCall]) -> list[Slot]:
    """Output neurons of every trainable weight, in the order in which the forward pass uses the weights."""
    slots: dict[str, Slot] = {}
    for call in calls:
        for name, position in call.reads:
            if name not in probe.parameters:
                continue  # frozen
            shape = tuple(probe.parameters[name].shape)
            if sum(size > 1 for size in shape) < 2 or name in slots:
                continue
            axis = len(shape) - 1 if call.function in PRODUCT_FUNCTIONS and position == 1 else 0  # x @ W or W @ x
            slots[name] = Slot(probe.model, name, shape, shape[axis], prod(shape[axis + 1 :]))
    return list(slots.values())


def _groups_after_ablation(probe: Probe, functions: Functions, progress: Progress) -> list[SlotGroup]:
    """Slots of each law and boundary group after ablation of ``functions``."""
    probe.ablated = frozenset(functions)
    try:
        result = search(probe, progress, thorough=False)
    except EquipoiseError:  # the network does not run without these functions
        return []
    finally:
        probe.ablated = frozenset()
    return [law.slots for law in result.laws] + result.boundary


def _in_group(slot: Slot, group: SlotGroup) -> bool:
    return any(slot.name == other.name and slot.inner == other.inner for other in group)


def _in_any_group(slot: Slot, groups: list[SlotGroup]) -> bool:
    return any(_in_group(slot, group) for group in groups)


def _minimal_ablation(
    functions: Functions, slot: Slot, groups_after_ablation: Callable[[Functions], list[SlotGroup]]
) -> Functions:
    """Drop functions whose ablation is not necessary for the slot's law to appear."""
    minimal = functions
    for function in reversed(functions):
        fewer = tuple(name for name in minimal if name != function)
        if fewer and _in_any_group(slot, groups_after_ablation(fewer)):
            minimal = fewer
    return minimal


def _ablation_cause(functions: Functions, group: SlotGroup, trace: Trace) -> str:
    """Describe why the ablated functions prevent the law of ``group``."""
    normalisations = [name for name in functions if "norm" in name.lower()]
    causes = _homogeneity_causes([name for name in functions if name not in normalisations], trace)
    if normalisations:
        approximately = _approximately(normalisations, trace)
        cause = f"a normalisation ({', '.join(normalisations)}) cancels any rescaling before it"
        causes.append(f"{cause},{approximately}" if approximately else cause)
    boundary = [slot.name.strip("()") for slot in group if slot.name.startswith("(")]
    if boundary:
        causes.append(f"identity skips tie the neurons to the network's {' and '.join(boundary)}")
    return ", and ".join(causes)


def _homogeneity_causes(functions: Sequence[str], trace: Trace) -> list[str]:
    """State that functions are not positively homogeneous, or only up to ε."""
    approximate = [name for name in functions if _epsilon(name, trace)]
    others = [name for name in functions if name not in approximate]
    causes = []
    for names, property_ in ((others, "not positively homogeneous"), (approximate, "positively homogeneous only")):
        if names:
            listed = " and ".join(_display_name(name, trace) for name in names)
            causes.append(f"{listed} {'is' if len(names) == 1 else 'are'} {property_}{_approximately(names, trace)}")
    return causes


def _approximately(functions: Sequence[str], trace: Trace) -> str:
    epsilon = max((_epsilon(name, trace) for name in functions), default=0.0)
    return f" approximately, up to ε = {epsilon:.0e}".replace("e-0", "e-") if epsilon else ""


def _epsilon(function: str, trace: Trace) -> float:
    return max((call.epsilon for call in trace.calls + trace.modules if call.function == function), default=0.0)


def _display_name(function: str, trace: Trace) -> str:
    """Name of a function, preceded by the module that calls it if the name differs: ReLU6 (hardtanh)."""
    name = function.lstrip("_")
    modules = {call.activation for call in trace.calls if call.function == function}
    module = modules.pop() if len(modules) == 1 else ""
    return name if module.lower() in ("", name) else f"{module} ({name})"


def _observed_cause(slot: Slot, trace: Trace, probe: Probe) -> str:
    """Describe a cause that ablation cannot show: an ε, squared features, shared weights or frozen parameters."""
    approximate = dict.fromkeys(
        call.function for call in trace.calls if call.epsilon and call.breaks_laws and slot.name in call.producers
    )
    if approximate:
        return ", and ".join(_homogeneity_causes(list(approximate), trace))
    squaring = next((index for index, call in enumerate(trace.calls) if slot.name in call.squared_weights), None)
    if squaring is not None:
        is_attention = any(call.function in ("exp", "softmax") for call in trace.calls[squaring:])
        cause = (
            "an attention score quadratic in the features"
            if is_attention
            else "a product of the features with themselves"
        )
        return f"{cause} ({trace.calls[squaring].function})"
    names = [
        name for name, p in probe.copy.named_parameters(remove_duplicate=False) if p is probe.parameters[slot.name]
    ]
    if len(names) > 1:
        return f"the weights are tied ({', '.join(names)})"
    if trace.use_count(slot.name) > 1:
        return f"the weights are used {trace.use_count(slot.name)} times"
    frozen = [name for name, parameter in probe.copy.named_parameters() if not parameter.requires_grad]
    if frozen:
        return f"the parameters that would balance them are frozen ({', '.join(frozen)})"
    return "no single function is the cause; the neurons are mixed before the next weights read them"
