"""Verification of laws: rescaling by any λ must not change the output.

λ runs from 1e-5 to 1e5, at random parameters and at the user's own, on inputs of several scales. With λ near 1 only,
clipped functions (ReLU6, Hardtanh, Threshold) and an ε inside a root pass as homogeneous. Every λ is a power of two, so
a rescaling along a law is exact, and most laws leave the output equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import isnan
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.laws.law import Law
from equipoise.laws.probe import Probe

OUTPUT_TOLERANCE = 1e-9  # maximum relative change of the output under a law
AMPLIFIED_ROUNDING = 1e-4  # a larger change is not rounding
LOG2_LAMBDA = 17  # λ runs from 1e-5 to 1e5
MEANS = (0.0, 0.5, 1.0)  # of random parameters, in standard deviations; with a positive mean fewer ReLUs are dead
DRAWS = 2  # of random parameters with a nonzero output
MAX_DRAWS = 9

Power = Literal["mixed", "up", "down"]
EVERY_POWER: tuple[Power, ...] = ("mixed", "up", "down")
# Scales of the inputs, with the powers that take activations to an extreme:
INPUT_SCALES: dict[float, tuple[Power, ...]] = {1.0: EVERY_POWER, 1e-3: ("down",), 1e3: ("up",)}


def plausible(probe: Probe, laws: Sequence[Law]) -> list[Law]:
    """Filter the laws that leave the output unchanged at one draw of random parameters: a quick test.

    Args:
        probe: Probe of the network.
        laws: Candidates. All are tested at once; only if that fails, those of equal shapes, which layers of one kind
            have in common, and one by one only where these fail.

    Returns:
        The laws that pass.
    """
    if not laws or _change_at_random_parameters(probe, laws, draws=1, powers=("mixed",)) <= AMPLIFIED_ROUNDING:
        return list(laws)
    before = _output(probe, gated=True)
    alike: dict[Any, list[Law]] = {}
    for law in laws:
        alike.setdefault((law.exponents, *(slot.shape for slot in law.slots)), []).append(law)

    def refuted(group: Sequence[Law]) -> Sequence[Law]:
        if not output_change(probe, group, True, ("mixed",), before) > AMPLIFIED_ROUNDING:
            return []
        return group if len(group) == 1 else [law for law in group if refuted([law])]

    wrong = [law for group in alike.values() for law in refuted(group)]
    return [law for law in laws if law not in wrong]


def confirmed(probe: Probe, laws: Sequence[Law]) -> list[Law]:
    """Filter the laws that hold at random parameters and at the user's own, for all scales of the inputs.

    Args:
        probe: Probe of the network.
        laws: Candidates. All are tested at once; a group that fails is halved.

    Returns:
        The laws that hold, each with the buffers on which it rests.
    """
    return _with_buffers(probe, _hold(probe, laws))


def _hold(probe: Probe, laws: Sequence[Law]) -> list[Law]:
    if not laws or largest_change(probe, laws) <= OUTPUT_TOLERANCE:
        return list(laws)
    middle = len(laws) // 2
    return _hold(probe, laws[:middle]) + _hold(probe, laws[middle:]) if middle else []


def largest_change(probe: Probe, laws: Sequence[Law]) -> float:
    """Relative change of the output at random and own parameters, on inputs of all scales.

    λ amplifies the rounding of entries without effect, such as the bias of a key. A small change is therefore measured
    again with these entries at zero.

    Args:
        probe: Probe of the network.
        laws: Laws to apply all at once.

    Returns:
        The largest change, or the first above the tolerance.
    """
    change = _change(probe, laws)
    if OUTPUT_TOLERANCE < change <= AMPLIFIED_ROUNDING and probe.values.without_effect:
        with probe.values.zero_without_effect():
            change = _change(probe, laws)
    return change


def _change(probe: Probe, laws: Sequence[Law]) -> float:
    change = _change_at_random_parameters(probe, laws)
    return change if change > OUTPUT_TOLERANCE else max(change, _change_at_all_scales(probe, laws))


def _change_at_random_parameters(
    probe: Probe, laws: Sequence[Law], draws: int = DRAWS, powers: Sequence[Power] = EVERY_POWER
) -> float:
    """Relative change of the output: the largest of several draws of random parameters, or the first that is too large.

    At a single draw a dead layer could hide the effect of its weights.

    Args:
        probe: Probe of the network.
        laws: Laws to apply all at once.
        draws: Number of draws with a nonzero output.
        powers: Rescalings to try.

    Returns:
        The relative change of the output; infinity if the output is zero at every draw.
    """
    changes: list[float] = []
    for attempt in range(MAX_DRAWS):
        probe.randomize(MEANS[attempt % len(MEANS)])
        change = output_change(probe, laws, True, powers)
        changes += [] if isnan(change) else [change]  # NaN: no output to compare with
        if len(changes) == draws or change > OUTPUT_TOLERANCE:
            break
    return max(changes, default=float("inf"))


def _change_at_all_scales(probe: Probe, laws: Sequence[Law]) -> float:
    """Largest change at random and own parameters, without gates; an output of zero or infinity says nothing."""
    changes = [0.0]
    for own in (False, True):
        for scale, powers in INPUT_SCALES.items():
            with ExitStack() as contexts:
                if own:
                    contexts.enter_context(probe.at_own_parameters())
                contexts.enter_context(probe.scaled_inputs(scale))
                change = output_change(probe, laws, False, powers)
            changes.append(0.0 if isnan(change) else change)
    return max(changes)


@torch.no_grad()
def output_change(
    probe: Probe,
    laws: Sequence[Law],
    gated: bool,
    powers: Sequence[Power] = EVERY_POWER,
    before: Tensor | None = None,
) -> float:
    """Rescale along all laws at once and measure the change of the probe's output.

    λ is a random power of two for each neuron (``"mixed"``), 2^17 for all (``"up"``) or 2^-17 for all (``"down"``).
    Different λ expose functions that mix neurons; equal λ functions of a whole layer, such as a threshold of its norm.

    Args:
        probe: Probe to rescale; its parameters are restored afterwards.
        laws: Laws to apply.
        gated: Whether to run the network with gates, where deep layers affect the output as much as the last, or
            without, which is the network itself.
        powers: Rescalings to try.
        before: Output at the probe's parameters, if it is known already.

    Returns:
        The largest relative change, or the first above the tolerance; NaN if the output is zero or not finite before
        the rescaling.
    """
    before = _output(probe, gated) if before is None else before
    if before is None or not bool(before.any()):
        return float("nan")
    change = 0.0
    for power in powers:
        with _rescaled(probe, laws, power):
            change = max(change, _relative_change(before, _output(probe, gated)))
        if change > OUTPUT_TOLERANCE:
            break
    return change


@contextmanager
def _rescaled(probe: Probe, laws: Sequence[Law], power: Power) -> Iterator[None]:
    """Rescale the probe along all laws within the context."""
    names = {slot.name for law in laws for slot in law.slots}
    saved = {name: probe.parameters[name].detach().clone() for name in names}
    try:
        for law in laws:
            exponents = LOG2_LAMBDA / max(law.exponents) * _random_powers(probe, law.neurons, power)
            replace(law, buffers={}).bind(probe.copy).rescale_(2.0 ** exponents.round())
        yield
    finally:
        probe.values.load(saved)


def _random_powers(probe: Probe, neurons: int, power: Power) -> Tensor:
    """Numbers in [−1, 1], one per neuron; half of the mixed ones lie at the ends."""
    if power != "mixed":
        return torch.full((neurons,), 1.0 if power == "up" else -1.0, dtype=torch.float64)
    uniform = 4.0 * torch.rand(neurons, generator=probe.generator, dtype=torch.float64) - 2.0
    return uniform.clamp(-1.0, 1.0)


def _relative_change(before: Tensor, after: Tensor | None) -> float:
    if after is None:
        return float("inf")
    return float((after - before).abs().max() / before.abs().max())


def _output(probe: Probe, gated: bool) -> Tensor | None:
    """The output; None if it is not finite or the forward pass fails."""
    try:
        with torch.enable_grad():  # the probe requires its output to be differentiable
            return probe.forward(gated).detach()
    except EquipoiseError:
        return None


def _with_buffers(probe: Probe, laws: Sequence[Law]) -> list[Law]:
    """Find the buffers on which each law rests: with other values of these buffers, the law does not hold."""
    buffers = {name: value for name, value in probe.buffers.items() if value.is_floating_point()}
    if not laws or not buffers:
        return list(laws)
    with _perturbed(probe, buffers):
        if output_change(probe, laws, False) <= OUTPUT_TOLERANCE:
            return list(laws)
    return [replace(law, buffers=_buffers_of(probe, law, buffers)) for law in laws]


def _buffers_of(probe: Probe, law: Law, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    current, resting = dict(probe.model.named_buffers()), {}
    for name, value in buffers.items():
        with _perturbed(probe, {name: value}):
            if output_change(probe, [law], False) > OUTPUT_TOLERANCE and name in current:
                resting[name] = current[name].detach().clone()
    return resting


@contextmanager
def _perturbed(probe: Probe, buffers: Mapping[str, Tensor]) -> Iterator[None]:
    """Perturb buffers within the context; positive ones (variances) stay positive."""
    saved = dict(probe.buffers)
    for name, value in buffers.items():
        noise = torch.randn(value.shape, generator=probe.generator, dtype=torch.float64).to(value)
        nonnegative = bool((value >= 0).all() and value.any())
        probe.buffers[name] = value * (0.25 * noise).exp() if nonnegative else value + 0.1 * (1 + value.abs()) * noise
    try:
        yield
    finally:
        probe.buffers.update(saved)
