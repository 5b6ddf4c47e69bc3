"""Judge the paper's claims about a table by numbers: *holds*, *does not hold* or *not enough runs*."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from equipoise.experiments.experiment import Claim, Coordinates, Experiment, Value
from equipoise.report.summary import CellSummary, Estimate, published_estimates

Judgement = Literal["holds", "does not hold", "not enough runs"]
Pair = tuple[Estimate | None, Estimate | None]  # (better, worse)


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim: ``better`` against ``worse``, or, for a growing lead, two such pairs.

    Attributes:
        settings: axis → value of what both sides have in common.
        pairs: estimates of (better, worse); for a claim that a lead grows, first at ``narrow``, then at ``wide``.
        lead: how far ``better`` is ahead, or how much its lead grows; None while a number is missing.
        true: whether the lead is large enough for the claim; None while a number is missing.
    """

    settings: Mapping[str, Value]
    pairs: tuple[Pair, ...]
    lead: float | None
    true: bool | None


@dataclass(frozen=True)
class Verdict:
    """Judgement of a claim with the comparisons that it rests on."""

    claim: Claim
    comparisons: tuple[Comparison, ...]
    judgement: Judgement

    @property
    def decided(self) -> list[Comparison]:
        """Comparisons with all their numbers."""
        return [comparison for comparison in self.comparisons if comparison.true is not None]

    @property
    def true(self) -> int:
        """Number of decided comparisons in which the claim is true."""
        return sum(bool(comparison.true) for comparison in self.decided)


def judge_claims(experiment: Experiment, summaries: Mapping[Coordinates, CellSummary]) -> list[Verdict]:
    """Judge every claim of an experiment by our runs; a cell counts once it has two runs or is complete."""
    verdicts = []
    for claim in experiment.claims:
        estimates = {
            coordinates: mean
            for coordinates, summary in summaries.items()
            if (mean := summary.accuracy if claim.measure == "accuracy" else summary.epochs)
            and mean.n >= min(2, summary.expected)
        }
        verdicts.append(judge_claim(experiment, claim, estimates))
    return verdicts


def judge_published(experiment: Experiment) -> list[Verdict]:
    """Judge every claim of an experiment by the published numbers."""
    return [
        judge_claim(experiment, claim, published_estimates(experiment, claim.measure)) for claim in experiment.claims
    ]


def judge_claim(experiment: Experiment, claim: Claim, estimates: Mapping[Coordinates, Estimate]) -> Verdict:
    """Judge one claim.

    The claim *holds* if every comparison is true (more than half of them, for a claim about most), *does not hold* if
    that has become impossible; until then there are *not enough runs*.

    Args:
        experiment: experiment that the claim is about.
        claim: claim to judge.
        estimates: means by coordinates; cells without a mean are absent.

    Returns:
        The verdict with all its comparisons.
    """
    comparisons = tuple(_comparisons(experiment, claim, estimates))
    true = sum(comparison.true is True for comparison in comparisons)
    false = sum(comparison.true is False for comparison in comparisons)
    total = len(comparisons)
    judgement: Judgement = "not enough runs"
    if (2 * true > total) if claim.most else (total > 0 and true == total):
        judgement = "holds"
    elif (2 * false >= total > 0) if claim.most else false > 0:
        judgement = "does not hold"
    return Verdict(claim, comparisons, judgement)


def _comparisons(
    experiment: Experiment, claim: Claim, estimates: Mapping[Coordinates, Estimate]
) -> Iterator[Comparison]:
    count = max(len(claim.better), len(claim.worse))
    sides = [(claim.better[i % len(claim.better)], claim.worse[i % len(claim.worse)]) for i in range(count)]
    ends = (claim.narrow, claim.wide) if claim.wide else ({},)
    for settings in experiment.combinations(claim.where, without=(*claim.better[0], *claim.wide)):
        for better, worse in sides:
            pairs = tuple(
                (
                    estimates.get(experiment.coordinates({**settings, **end, **better})),
                    estimates.get(experiment.coordinates({**settings, **end, **worse})),
                )
                for end in ends
            )
            lead = _lead(claim, pairs)
            label = {**settings, **(_difference(better, worse) if count > 1 else {})}
            yield Comparison(label, pairs, lead, None if lead is None else lead > claim.by)


def _lead(claim: Claim, pairs: tuple[Pair, ...]) -> float | None:
    leads = []
    for better, worse in pairs:
        if better is None or worse is None:
            return None
        ahead = better.mean - worse.mean
        leads.append(ahead if claim.measure == "accuracy" else -ahead)  # fewer epochs are better
    return leads[0] if len(leads) == 1 else leads[1] - leads[0]


def _difference(better: Mapping[str, Value], worse: Mapping[str, Value]) -> dict[str, Value]:
    """Label that distinguishes the pairs of a claim: ``{"init": "bal-o > xav"}``."""
    return {name: f"{better[name]} > {worse[name]}" for name in better if better[name] != worse[name]}
