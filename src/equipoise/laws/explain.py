"""Explanation of a network: its laws, their balance and the cause of every missing law."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from equipoise.laws.causes import MissingLaw, missing_laws
from equipoise.laws.law import Law
from equipoise.laws.probe import Probe
from equipoise.laws.progress import Progress
from equipoise.laws.search import search
from equipoise.laws.validation import OutputSelector

BAR_WIDTH = 24
LINE_WIDTH = 118
ZERO_GRADIENT_TOLERANCE = 1e-13  # relative to the largest |θ·∇θ| of the network


@dataclass(frozen=True)
class LawBalance:
    """Relative imbalance ``|c| / (Σ_in ‖θ‖² + Σ_out ‖θ‖²)`` of one law.

    Attributes:
        mean: Mean over neurons.
        worst: Maximum over neurons.
        heavier: Side with the larger norm: ``"incoming"``, ``"outgoing"``, or ``""`` if both are equal.
    """

    mean: float
    worst: float
    heavier: str

    @property
    def bar(self) -> str:
        """The mean as a text bar: empty if balanced, full if one side is negligible against the other."""
        filled = round(BAR_WIDTH * min(self.mean, 1.0)) if self.mean == self.mean else 0  # NaN draws an empty bar
        return "█" * filled + "░" * (BAR_WIDTH - filled)


@dataclass(frozen=True)
class Explanation:
    """Result of :func:`~equipoise.explain`; ``print`` it for a readable report.

    Attributes:
        model: Class name of the model.
        laws: The laws, ordered from input to output.
        balance: Relative imbalance of each law.
        missing: Hidden neurons without a law, with the cause.
        warnings: Parameters that are uninitialised, not finite, or receive no gradient.
        note: The subgraph that was searched, if the inputs are a large graph.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        >>> explanation = eq.explain(mlp, torch.randn(6, 3))
        >>> print(explanation)
        Sequential: 1 law over 4 neurons; 5 neurons without a law
        <BLANKLINE>
        Laws with relative imbalance |c| / (incoming + outgoing): mean and maximum
          1  0.weight[i,:] + 0.bias[i] = 2.weight[:,i]   (4 neurons)
             ...
        <BLANKLINE>
        Hidden neurons without a law
          ·  2.weight[i,:]   (5 neurons): tanh is not positively homogeneous
        >>> isinstance(explanation, eq.Explanation), explanation.missing[0].functions
        (True, ('tanh',))
    """

    model: str
    laws: tuple[Law, ...]
    balance: tuple[LawBalance, ...]
    missing: tuple[MissingLaw, ...]
    warnings: tuple[str, ...]
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON-serialisable types."""
        return {
            "model": self.model,
            "laws": [
                {
                    "incoming": [str(slot) for slot in law.incoming],
                    "outgoing": [str(slot) for slot in law.outgoing],
                    "exponents": [exponent for exponent, _ in law.terms],
                    "conserved": law.conserved,
                    "buffers": list(law.buffers),
                    "neurons": law.neurons,
                    "imbalance": law.imbalance().tolist(),
                    "relative_imbalance": {"mean": balance.mean, "worst": balance.worst},
                    "heavier": balance.heavier,
                }
                for law, balance in zip(self.laws, self.balance, strict=True)
            ],
            "missing": [
                {
                    "weights": [str(slot) for slot in missing.weights],
                    "neurons": missing.neurons,
                    "cause": missing.cause,
                    "functions": list(missing.functions),
                }
                for missing in self.missing
            ],
            "warnings": list(self.warnings),
            "note": self.note,
        }

    def __str__(self) -> str:
        note = [_wrap(f"({self.note})")] if self.note else []
        lines = [self._headline(), *note, *self._law_lines(), *self._missing_lines(), *self._warning_lines()]
        return "\n".join(lines)

    def _headline(self) -> str:
        covered = sum(law.neurons for law in self.laws)
        uncovered = sum(missing.neurons for missing in self.missing)
        laws = f"{_count(len(self.laws), 'law')} over {_count(covered, 'neuron')}" if self.laws else "no laws"
        return f"{self.model}: {laws}" + (f"; {_count(uncovered, 'neuron')} without a law" if uncovered else "")

    def _law_lines(self) -> Iterable[str]:
        if self.laws:
            yield "\nLaws with relative imbalance |c| / (incoming + outgoing): mean and maximum"
        for number, (law, balance) in enumerate(zip(self.laws, self.balance, strict=True), 1):
            yield _wrap(f"{number:3}  {law}")
            heavier = f"  {balance.heavier} side is larger" if balance.heavier else ""
            note = heavier if law.outgoing else "  scale-free: norm is conserved, nothing to balance"
            yield f"     {balance.bar}  {balance.mean:.1e}  {balance.worst:.1e}{note}"
            if max(law.exponents) > 1:
                yield _wrap(f"     exponents other than ±1: gradient flow conserves {law.conserved}")
            if law.buffers:
                yield _wrap(f"     only for the current value of {', '.join(law.buffers)}")

    def _missing_lines(self) -> Iterable[str]:
        if self.missing:
            yield "\nHidden neurons without a law"
        for missing in self.missing:
            yield _wrap(f"  ·  {missing}")

    def _warning_lines(self) -> Iterable[str]:
        if self.warnings:
            yield "\nWarnings"
        for warning in self.warnings:
            yield _wrap(f"  !  {warning}")


def explain(
    model: nn.Module, *inputs: Any, output: OutputSelector | None = None, sample: bool = True, **kwargs: Any
) -> Explanation:
    """Report which neurons of a model have a law, how balanced each law is, and why other neurons have none.

    The cause of a missing law is found by ablation: a function is the cause if the law appears once the function is
    replaced by the identity. The model does not change. Lazy parameters are initialised on a copy; the imbalance is
    that of the copy.

    Args:
        model: Any network.
        inputs: Positional arguments of the model, as for :func:`~equipoise.discover`.
        output: Function that selects the tensor to differentiate if the model does not return a single tensor.
        sample: Whether to search on a subgraph of a large graph.
        kwargs: Keyword arguments of the model.

    Returns:
        The explanation; ``print`` it for a readable report.

    Raises:
        ModelError: The model is not a module, has no trainable parameters, or cannot be copied.
        ForwardError: The model fails on the inputs.
        OutputError: The output is not a finite, differentiable tensor.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> eq.explain(mlp, torch.randn(5, 3)).missing[0].cause
        'tanh is not positively homogeneous'
    """
    with torch.inference_mode(False), torch.enable_grad(), Progress("explain") as progress:
        probe = Probe(model, inputs, kwargs, output, sample)
        result = search(probe, progress)
        missing = missing_laws(probe, result, progress)
        warnings = tuple(_warnings(model, probe))
    if any(is_lazy(parameter) for parameter in model.parameters()):
        probe.values.load(probe.values.own)
        balance = tuple(_balance(law.bind(probe.copy)) for law in result.laws)
    else:
        balance = tuple(_balance(law) for law in result.laws)
    note = str(probe.subgraph or "")
    return Explanation(type(model).__name__, tuple(result.laws), balance, tuple(missing), warnings, note)


def _balance(law: Law) -> LawBalance:
    with torch.no_grad():
        relative = law.relative_imbalance()
        difference = float(law.imbalance().sum())
    if abs(difference) <= 1e-6 * float(sum(side.sum() for side in law.norms())):
        heavier = ""
    else:
        heavier = "incoming" if difference > 0 else "outgoing"
    return LawBalance(float(relative.abs().mean()), float(relative.abs().max()), heavier)


def _warnings(model: nn.Module, probe: Probe) -> Iterable[str]:
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        yield f"uninitialised lazy parameters: {', '.join(lazy)}; run the model once before you use its laws"
    not_finite = [name for name, p in probe.values.own.items() if not bool(torch.isfinite(p).all())]
    if not_finite:
        yield f"not finite (NaN or infinite): {', '.join(not_finite)}"
    products = probe.gradient_products()[0]
    sizes = {name: float(products[name].abs().max()) if name in products else 0.0 for name in probe.parameters}
    largest = max(sizes.values())
    without_gradient = [name for name, size in sizes.items() if size <= ZERO_GRADIENT_TOLERANCE * largest]
    if without_gradient:
        yield f"no gradient: {', '.join(without_gradient)}; unused, or without effect on the output for these inputs"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _wrap(text: str) -> str:
    return textwrap.fill(text, LINE_WIDTH, subsequent_indent=" " * 9, break_long_words=False)
