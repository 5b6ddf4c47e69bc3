"""Why a neuron has no law: found by experiment where one can be made, by observation elsewhere.

A function is the cause if the law appears once the function is left out. That needs no list of functions: what spoils a
law is whatever, in the network at hand, does not double its result when its features are doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod

from equipoise.errors import EquipoiseError
from equipoise.laws.discover import Findings, search
from equipoise.laws.probe import Probe
from equipoise.laws.slot import Slot
from equipoise.laws.trace import PRODUCTS, Call, Trace

MOST_EXPERIMENTS = 8
SOFTMAX = {"exp", "sub", "softmax"}  # leaving out a softmax together with something else changes what attention is

Group = tuple[Slot, ...]
Functions = tuple[str, ...]


@dataclass(frozen=True)
class Missing:
    """Neurons without a law, and why.

    Attributes:
        weights: the weights that write them, neuron by neuron.
        cause: the reason in words.
        functions: the functions or modules to blame, where leaving them out brings the law back.
    """

    weights: tuple[Slot, ...]
    cause: str
    functions: Functions = ()

    @property
    def neurons(self) -> int:
        """How many neurons they are."""
        return self.weights[0].neurons

    def __str__(self) -> str:
        count = f"{self.neurons} neuron{'s' if self.neurons > 1 else ''}"
        return f"{', '.join(map(str, self.weights))}   ({count}): {self.cause}"


def missing_laws(probe: Probe, findings: Findings) -> list[Missing]:
    """Every weight whose output neurons no law covers and the network does not return, with the cause."""
    trace = probe.examine()
    left = [slot for slot in _written(probe, trace.calls) if not findings.covers(slot)]
    order = {slot.name: number for number, slot in enumerate(left)}
    suspects = _suspects(trace)
    together = tuple(suspect for suspect in suspects if suspect not in SOFTMAX)
    experiments = [(suspect,) for suspect in suspects] + ([together] if len(together) > 1 else [])
    groups_without = cache(lambda functions: _groups_without(probe, functions))
    missing: list[Missing] = []
    for functions in experiments:
        for slot in list(left):
            if slot in left and _in_any(slot, groups_without(functions)):
                needed = _needed(functions, slot, groups_without)
                group = next(group for group in groups_without(needed) if _in(slot, group))
                weights = tuple(other for other in left if _in(other, group))
                missing.append(Missing(weights, _words(needed, group, trace), needed))
                left = [other for other in left if other not in weights]
    unread = {slot.name for slot in left if slot.name in trace.returned and trace.uses(slot.name) == 1}
    missing += [Missing((slot,), _observed(slot, trace, probe)) for slot in left if slot.name not in unread]
    return sorted(missing, key=lambda entry: order[entry.weights[0].name])


def _suspects(trace: Trace) -> list[str]:
    """What may be to blame: modules that normalise, functions, then other modules; each by name, once."""
    spoiling = [call for call in trace.modules if call.spoils]
    norms = [call for call in spoiling if call.degree == 0]
    calls = norms + [call for call in trace.calls if call.spoils] + spoiling
    return list(dict.fromkeys(call.function for call in calls))[:MOST_EXPERIMENTS]


def _written(probe: Probe, calls: list[Call]) -> list[Slot]:
    """The output neurons of every trainable weight, in the order in which the weights are used."""
    slots: dict[str, Slot] = {}
    for call in calls:
        for name, position in call.reads:
            if name not in probe.parameters:
                continue  # frozen
            shape = tuple(probe.parameters[name].shape)
            if sum(size > 1 for size in shape) < 2 or name in slots:
                continue
            axis = len(shape) - 1 if call.function in PRODUCTS and position == 1 else 0  # x @ W, against W x
            slots[name] = Slot(probe.model, name, shape, shape[axis], prod(shape[axis + 1 :]))
    return list(slots.values())


def _groups_without(probe: Probe, functions: Functions) -> list[Group]:
    """The slots of each law, and of input and output, once these functions are left out."""
    probe.without = frozenset(functions)
    try:
        findings = search(probe)
    except EquipoiseError:  # the network does not run without them: nothing is to be learnt
        return []
    finally:
        probe.without = frozenset()
    return [law.slots for law in findings.laws] + findings.boundary


def _in(slot: Slot, group: Group) -> bool:
    return any(slot.name == other.name and slot.inner == other.inner for other in group)


def _in_any(slot: Slot, groups: list[Group]) -> bool:
    return any(_in(slot, group) for group in groups)


def _needed(functions: Functions, slot: Slot, groups_without: Callable[[Functions], list[Group]]) -> Functions:
    """The fewest of the functions that must all be left out for the slot's law to appear."""
    needed = functions
    for function in reversed(functions):
        fewer = tuple(name for name in needed if name != function)
        if fewer and _in_any(slot, groups_without(fewer)):
            needed = fewer
    return needed


def _words(functions: Functions, group: Group, trace: Trace) -> str:
    squares = {call.function for call in trace.calls + trace.modules if call.degree == 2}
    norms = [name for name in functions if "norm" in name.lower()]
    others = [name for name in functions if name not in norms and name not in squares]
    words = [f"{name} is homogeneous of degree 2, not 1" for name in functions if name in squares]
    if others:
        words.append(f"{' and '.join(others)} {'is' if len(others) == 1 else 'are'} not positively homogeneous")
    if norms:
        words.append(f"a normalisation ({', '.join(norms)}) undoes any rescaling before it")
    ends = [slot.name.strip("()") for slot in group if slot.name.startswith("(")]
    if ends:
        words.append(f"identity skips tie the neurons to the network's {' and '.join(ends)}")
    return ", and ".join(words)


def _observed(slot: Slot, trace: Trace, probe: Probe) -> str:
    """A cause that no function can be left out to show."""
    squaring = next((place for place, call in enumerate(trace.calls) if slot.name in call.squares), None)
    if squaring is not None:
        scores = any(call.function in ("exp", "softmax") for call in trace.calls[squaring:])
        what = "an attention score quadratic in the features" if scores else "a product of the features with themselves"
        return f"{what} ({trace.calls[squaring].function})"
    names = [
        name for name, p in probe.copy.named_parameters(remove_duplicate=False) if p is probe.parameters[slot.name]
    ]
    if len(names) > 1:
        return f"the weights are tied ({', '.join(names)})"
    if trace.uses(slot.name) > 1:
        return f"the weights are used {trace.uses(slot.name)} times"
    frozen = [name for name, parameter in probe.copy.named_parameters() if not parameter.requires_grad]
    if frozen:
        return f"what would balance them is frozen ({', '.join(frozen)})"
    return "no single function was found to be the cause; the neurons are mixed before they are read"
