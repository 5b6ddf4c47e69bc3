"""Verification of laws: rescaling by any λ must not change the output.

λ runs from 1e-5 to 1e5, at random parameters and at the user's own, on inputs of several scales. With λ near 1 only,
clipped functions (ReLU6, Hardtanh, Threshold) and an ε inside a root pass as homogeneous.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import isnan

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.laws.law import Law
from equipoise.laws.probe import Probe

OUTPUT_TOLERANCE = 1e-9  # maximum relative change of the output under a law
LOG2_LAMBDA = 17  # λ runs from 1e-5 to 1e5, in powers of two: these products are exact, so rounding hides no law
INPUT_SCALES = (1.0, 1e-3, 1e3)
MEANS = (0.0, 0.5, 1.0)  # of random parameters, in standard deviations; with a positive mean fewer ReLUs are dead
DRAWS = 2  # of random parameters with a nonzero output
MAX_DRAWS = 9
AMPLIFIED_ROUNDING = 1e-4  # a larger change is not rounding
ATTEMPTS = 2


def verified(probe: Probe, laws: Sequence[Law]) -> list[Law]:
    """Filter the laws that leave the output unchanged at random parameters.

    Args:
        probe: Probe of the network.
        laws: Candidates. All are tested at once, and one by one only if that fails.

    Returns:
        The laws that hold.
    """
    if not laws or _hold(probe, laws):
        return list(laws)
    probe.randomize()
    before = [_output(probe, gated=True)]
    laws = [law for law in laws if not output_change(probe, [law], (True,), 1, before) > OUTPUT_TOLERANCE]
    if not laws or _hold(probe, laws):
        return laws
    return [law for law in laws if _hold(probe, [law])]


def change_at_random_parameters(probe: Probe, laws: Sequence[Law], mean: float = 1.0) -> float:
    """Relative change of the output: the largest of several draws of random parameters, or the first that is too large.

    At a single draw a dead layer could hide the effect of its weights.

    Args:
        probe: Probe of the network.
        laws: Laws to apply all at once.
        mean: Factor of the means of random parameters. Large means make activations of neurons nearly equal, and batch
            norm then amplifies rounding.

    Returns:
        The relative change of the output; infinity if the output is zero at every draw.
    """
    changes: list[float] = []
    for attempt in range(MAX_DRAWS):
        probe.randomize(mean * MEANS[attempt % len(MEANS)])
        change = output_change(probe, laws, gated=(True,))
        changes += [] if isnan(change) else [change]  # NaN: no output to compare with
        if len(changes) == DRAWS or change > OUTPUT_TOLERANCE:
            break
    return max(changes, default=float("inf"))


def confirmed(probe: Probe, laws: Sequence[Law]) -> list[Law]:
    """Filter the laws that hold for all scales of the inputs, also at the user's own parameters.

    Args:
        probe: Probe of the network.
        laws: Laws that hold at random parameters.

    Returns:
        The laws that hold, each with the buffers on which it rests.
    """
    if laws and change_at_all_scales(probe, laws) > OUTPUT_TOLERANCE:
        laws = [law for law in laws if change_at_all_scales(probe, [law]) <= OUTPUT_TOLERANCE]
    return _with_buffers(probe, laws)


def change_at_all_scales(probe: Probe, laws: Sequence[Law]) -> float:
    """Largest relative change of the output over random and own parameters and ``INPUT_SCALES``.

    An output that is zero or not finite says nothing and is left out.

    Args:
        probe: Probe of the network.
        laws: Laws to apply all at once.

    Returns:
        The relative change of the output.
    """
    changes = [0.0]
    for own in (False, True):
        for scale in INPUT_SCALES:
            with ExitStack() as contexts:
                if own:
                    contexts.enter_context(probe.at_own_parameters())
                contexts.enter_context(probe.scaled_inputs(scale))
                change = output_change(probe, laws, gated=(False,), passes=3 if scale == 1.0 else 2)
            changes.append(0.0 if isnan(change) else change)  # NaN: no output to compare with
    return max(changes)


def _hold(probe: Probe, laws: Sequence[Law]) -> bool:
    """Whether laws leave the output unchanged; a small change may be rounding and is measured again."""
    for attempt in range(ATTEMPTS):
        change = change_at_random_parameters(probe, laws, mean=1.0 - attempt)
        if change <= OUTPUT_TOLERANCE or change > AMPLIFIED_ROUNDING:
            break
    return change <= OUTPUT_TOLERANCE


@torch.no_grad()
def output_change(
    probe: Probe,
    laws: Sequence[Law],
    gated: Sequence[bool] = (True, False),
    passes: int = 3,
    before: Sequence[Tensor | None] | None = None,
) -> float:
    """Rescale along all laws at once and measure the change of the probe's output.

    Args:
        probe: Probe to rescale; its parameters are restored afterwards.
        laws: Laws to apply. λ of every neuron is 2^17, 2^-17 and a random power of two in between.
        gated: Whether to run the network with gates, where deep layers affect the output as much as the last, and
            without, which is the network itself.
        passes: How many of these three rescalings to try.
        before: Outputs at the probe's parameters, one per entry of ``gated``, if they are known already.

    Returns:
        The largest relative change, or the first above the tolerance; NaN if the output is zero or not finite before
        the rescaling.
    """
    saved = {name: parameter.detach().clone() for name, parameter in probe.parameters.items()}
    if before is None:
        before = [_output(probe, gates) for gates in gated]
    if any(output is None or not bool(output.any()) for output in before):
        return float("nan")
    signs = [_random(probe, law).sign() for law in laws]
    exponents = [signs, [-sign for sign in signs], [_random(probe, law) for law in laws]]
    change = 0.0
    try:
        for powers in exponents[:passes]:
            for law, power in zip(laws, powers, strict=True):
                factors = 2.0 ** (LOG2_LAMBDA * power / max(law.exponents)).round()
                replace(law, buffers={}).bind(probe.copy).rescale_(factors)
            after = [_output(probe, gates) for gates in gated]
            probe.load(saved)
            change = max(change, *map(_relative_change, before, after))
            if change > OUTPUT_TOLERANCE:
                break
    finally:
        probe.load(saved)
    return change


def _relative_change(before: Tensor | None, after: Tensor | None) -> float:
    if before is None or after is None:
        return float("inf")
    return float((after - before).abs().max() / before.abs().max())


def _random(probe: Probe, law: Law) -> Tensor:
    """Random numbers in [−1, 1], one per neuron."""
    return 2.0 * torch.rand(law.neurons, generator=probe.generator, dtype=torch.float64) - 1.0


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
        if output_change(probe, laws, gated=(False,)) <= OUTPUT_TOLERANCE:
            return list(laws)
    return [replace(law, buffers=_buffers_of(probe, law, buffers)) for law in laws]


def _buffers_of(probe: Probe, law: Law, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    current, resting = dict(probe.model.named_buffers()), {}
    for name, value in buffers.items():
        with _perturbed(probe, {name: value}):
            if output_change(probe, [law], gated=(False,)) > OUTPUT_TOLERANCE and name in current:
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
