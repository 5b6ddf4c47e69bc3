"""Rescale, and see whether the network still computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.laws.checks import Output
from equipoise.laws.law import Law, check_laws
from equipoise.laws.probe import Probe

TOLERANCE = 1e-9


def verify(
    model: nn.Module, laws: Sequence[Law], *inputs: Any, output: Output | None = None, **kwargs: Any
) -> list[float]:
    """How far each law is from leaving the function alone: the relative change of the output.

    Rescales a float64 copy with random parameters by random λ in [1/4, 4]. About 1e-15 for a law, much more for what is
    none; the model itself is not touched.

    Example:
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> from equipoise.laws.discover import discover
        >>> x = torch.randn(5, 3)
        >>> max(verify(mlp, discover(mlp, x), x)) < 1e-12
        True
    """
    probe = Probe(model, inputs, kwargs, output)
    probe.randomize()
    return [change(probe, [law]) for law in check_laws(laws)]


@torch.no_grad()
def change(probe: Probe, laws: Sequence[Law]) -> float:
    """Relative change of the probe's output when ``laws`` are all rescaled at once by random λ in [1/4, 4].

    The larger of the change with gates (deep layers matter as much as the last) and without (the network as it is).
    """
    kept = {name: parameter.detach().clone() for name, parameter in probe.parameters.items()}
    before = [_output(probe, gated) for gated in (True, False)]
    try:
        for law in laws:
            exponents = 2.0 * torch.rand(law.neurons, generator=probe.generator, dtype=torch.float64) - 1.0
            law.bind(probe.copy).rescale_(4.0**exponents)
        after = [_output(probe, gated) for gated in (True, False)]
    finally:
        for name, parameter in probe.parameters.items():
            parameter.copy_(kept[name])
    return max(float((new - old).abs().max() / old.abs().max()) for new, old in zip(after, before, strict=True))


def _output(probe: Probe, gated: bool) -> Tensor:
    with torch.enable_grad():  # the probe checks that its output is differentiable
        return probe.forward(gated).detach()
