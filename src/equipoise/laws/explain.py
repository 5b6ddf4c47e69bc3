"""A network's laws, balance and exceptions, in plain words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from equipoise.laws.causes import Missing, missing_laws
from equipoise.laws.checks import Output
from equipoise.laws.discover import search
from equipoise.laws.law import Law
from equipoise.laws.probe import Probe

BAR = 24
NO_GRADIENT = 1e-13  # of the largest θ·∇θ in the network


@dataclass(frozen=True)
class Balance:
    """How far one law is out of balance: |c| over the norms of both sides, averaged over neurons and at worst."""

    mean: float
    worst: float
    heavier: str  # "incoming", "outgoing" or "" if both weigh the same

    @property
    def bar(self) -> str:
        """The mean as a bar: empty is balance, full a side that outweighs the other utterly."""
        full = round(BAR * min(self.mean, 1.0)) if self.mean == self.mean else 0
        return "█" * full + "░" * (BAR - full)


@dataclass(frozen=True)
class Explanation:
    """What ``explain`` found; prints as text.

    Attributes:
        model: the model's class.
        laws: every law, from input to output.
        balance: how far out of balance each of them is.
        missing: hidden neurons without a law, with the cause.
        warnings: parameters that are not finite, not initialised, or receive no gradient.
    """

    model: str
    laws: tuple[Law, ...]
    balance: tuple[Balance, ...]
    missing: tuple[Missing, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return {
            "model": self.model,
            "laws": [
                {
                    "incoming": [str(slot) for slot in law.incoming],
                    "outgoing": [str(slot) for slot in law.outgoing],
                    "neurons": law.neurons,
                    "imbalance": law.imbalance().tolist(),
                    "relative_imbalance": {"mean": balance.mean, "worst": balance.worst},
                    "heavier": balance.heavier,
                }
                for law, balance in zip(self.laws, self.balance, strict=True)
            ],
            "missing": [
                {
                    "weights": [str(slot) for slot in entry.weights],
                    "neurons": entry.neurons,
                    "cause": entry.cause,
                    "functions": list(entry.functions),
                }
                for entry in self.missing
            ],
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._law_lines(), *self._missing_lines(), *self._warning_lines()])

    def _headline(self) -> str:
        covered = sum(law.neurons for law in self.laws)
        bare = sum(entry.neurons for entry in self.missing)
        laws = f"{_count(len(self.laws), 'law')} over {_count(covered, 'neuron')}" if self.laws else "no law"
        return f"{self.model}: {laws}" + (f"; {_count(bare, 'neuron')} without" if bare else "")

    def _law_lines(self) -> Iterable[str]:
        if self.laws:
            yield "\nLaws, and how far each is out of balance: |c| / (incoming + outgoing), mean and largest"
        for number, (law, balance) in enumerate(zip(self.laws, self.balance, strict=True), 1):
            yield textwrap.fill(f"{number:3}  {law}", 118, subsequent_indent=" " * 9, break_long_words=False)
            heavier = f"  {balance.heavier} weights outweigh" if balance.heavier else ""
            free = "  scale-free: conserved, nothing to balance" if not law.outgoing else heavier
            yield f"     {balance.bar}  {balance.mean:.1e}  {balance.worst:.1e}{free}"

    def _missing_lines(self) -> Iterable[str]:
        if self.missing:
            yield "\nHidden neurons without a law, and why"
        for entry in self.missing:
            yield textwrap.fill(f"  ·  {entry}", 118, subsequent_indent=" " * 9, break_long_words=False)

    def _warning_lines(self) -> Iterable[str]:
        if self.warnings:
            yield "\nWarnings"
        for warning in self.warnings:
            yield textwrap.fill(f"  !  {warning}", 118, subsequent_indent=" " * 9, break_long_words=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def explain(model: nn.Module, *inputs: Any, output: Output | None = None, **kwargs: Any) -> Explanation:
    """Which neurons have a law, how far each is out of balance, and why the others have none.

    Takes what :func:`~equipoise.discover` takes, and like it leaves the model as it is. A model with lazy parameters is
    explained too: as far as one can.

    Example:
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> explain(mlp, torch.randn(5, 3)).missing[0].cause
        'tanh is not positively homogeneous'
    """
    name = type(model).__name__
    lazy = [n for n, p in model.named_parameters() if is_lazy(p)] if isinstance(model, nn.Module) else []
    if lazy:
        warning = (
            f"never initialised (lazy): {', '.join(lazy)}; run the model once on its inputs, then explain it again"
        )
        return Explanation(name, (), (), (), (warning,))
    probe = Probe(model, inputs, kwargs, output)
    findings = search(probe)
    missing = missing_laws(probe, findings)
    balance = tuple(_balance(law) for law in findings.laws)
    return Explanation(name, tuple(findings.laws), balance, tuple(missing), tuple(_warnings(model, probe)))


def _balance(law: Law) -> Balance:
    with torch.no_grad():
        relative = law.relative_imbalance()
        total = float(law.imbalance().sum())
    heavier = (
        ""
        if abs(total) <= 1e-6 * float(sum(side.sum() for side in law.norms()))
        else ("incoming" if total > 0 else "outgoing")
    )
    return Balance(float(relative.abs().mean()), float(relative.abs().max()), heavier)


def _warnings(model: nn.Module, probe: Probe) -> Iterable[str]:
    broken = [name for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())]
    if broken:
        yield f"not finite (NaN or infinite): {', '.join(broken)}"
    products = probe.gradient_products()
    sizes = {name: float(products[name].abs().max()) if name in products else 0.0 for name in probe.parameters}
    idle = [name for name, size in sizes.items() if size <= NO_GRADIENT * max(sizes.values())]
    if idle:
        yield f"no gradient reaches: {', '.join(idle)}; unused, or without effect on the output for these inputs"
