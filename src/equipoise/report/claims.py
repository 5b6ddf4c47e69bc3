"""Judge the paper's claims about a table by numbers.

A claim is a set of comparisons, each of which must find ``better`` ahead of ``worse``. A comparison *agrees* with the
claim or *contradicts* it only if the 95 % confidence intervals are apart. While they overlap it is *within the noise*,
whichever mean is higher, so that noise neither supports a claim nor refutes it. With a required lead or a growing lead,
the lead is compared with the sum of the half-widths of the intervals. Equal means are always within the noise;
differences below :data:`~equipoise.report.summary.TIE` are rounding errors.

===============================  ======================================  =========================================
judgement                        claim about all comparisons             claim about most comparisons
===============================  ======================================  =========================================
holds                            all agree                               more than half agree
holds but for n comparisons      more than half agree, the other n are   (does not occur)
within the noise                 within the noise
contradicted                     at least one contradicts                at least half contradict
open                             otherwise: runs are missing, or at most half of the comparisons agree
===============================  ======================================  =========================================

A judgement other than *open* is *provisional* if it rests on truncated runs (``--epochs 100``) or on cells with fewer
runs than the experiment has. More runs may then change it. A single run has no interval and is always within the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from equipoise.experiments.experiment import Claim, Coordinates, Experiment, Value
from equipoise.report.summary import TIE, CellSummary, Estimate, published_estimates

Judgement = Literal["holds", "holds but for noise", "contradicted", "open"]
Finding = Literal["agrees", "within the noise", "contradicts"]
Pair = tuple[Estimate | None, Estimate | None]  # (better, worse)


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim: ``better`` against ``worse``, or, for a growing lead, two such pairs.

    Attributes:
        settings: axis → value of what both sides have in common.
        pairs: estimates of (better, worse); for a claim that a lead grows, first at ``narrow``, then at ``wide``.
        lead: how far ``better`` is ahead, or how much its lead grows; None while a number is missing.
        surplus: by how much the lead exceeds what the claim requires; None while a number is missing.
        noise: sum of the half-widths of the confidence intervals; infinite if one of them rests on a single run.
    """

    settings: Mapping[str, Value]
    pairs: tuple[Pair, ...]
    lead: float | None
    surplus: float | None
    noise: float

    @property
    def finding(self) -> Finding | None:
        """What the comparison says about the claim; None while a number is missing."""
        if self.surplus is None:
            return None
        if abs(self.surplus) <= self.noise + TIE:
            return "within the noise"
        return "agrees" if self.surplus > 0 else "contradicts"

    @property
    def means_agree(self) -> bool | None:
        """Whether the means alone agree with the claim; None while a number is missing."""
        return None if self.surplus is None else self.surplus > TIE


@dataclass(frozen=True)
class Verdict:
    """Judgement of a claim with the comparisons that it rests on.

    Attributes:
        claim: the claim.
        comparisons: all its comparisons.
        judgement: see the table of this module.
        provisional: why more runs may change the judgement; empty if it is final or open.
    """

    claim: Claim
    comparisons: tuple[Comparison, ...]
    judgement: Judgement
    provisional: str = ""

    @property
    def decided(self) -> list[Comparison]:
        """Comparisons with all their numbers."""
        return [comparison for comparison in self.comparisons if comparison.finding is not None]

    def count(self, finding: Finding) -> int:
        """Return the number of comparisons with this finding."""
        return sum(comparison.finding == finding for comparison in self.comparisons)

    @property
    def leaning(self) -> int:
        """Number of comparisons within the noise whose means agree with the claim."""
        return sum(bool(one.means_agree) and one.finding == "within the noise" for one in self.comparisons)

    @property
    def text(self) -> str:
        """The judgement in words."""
        words: str = self.judgement
        if self.judgement == "holds but for noise":
            n = self.count("within the noise")
            words = f"holds but for {n} comparison{'s' if n != 1 else ''} within the noise"
        return f"{words} (provisional)" if self.provisional else words


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
        verdict = judge_claim(experiment, claim, estimates)
        verdicts.append(replace(verdict, provisional=_reservation(experiment, verdict)))
    return verdicts


def judge_published(experiment: Experiment) -> list[Verdict]:
    """Judge every claim of an experiment by the published numbers."""
    return [
        judge_claim(experiment, claim, published_estimates(experiment, claim.measure)) for claim in experiment.claims
    ]


def judge_claim(experiment: Experiment, claim: Claim, estimates: Mapping[Coordinates, Estimate]) -> Verdict:
    """Judge one claim.

    Args:
        experiment: experiment that the claim is about.
        claim: claim to judge.
        estimates: means by coordinates; cells without a mean are absent.

    Returns:
        The verdict with all its comparisons.
    """
    verdict = Verdict(claim, tuple(_comparisons(experiment, claim, estimates)), "open")
    total = len(verdict.comparisons)
    agree, noise = verdict.count("agrees"), verdict.count("within the noise")
    contradict = verdict.count("contradicts")
    judgement: Judgement = "open"
    if (2 * contradict >= total > 0) if claim.most else contradict > 0:
        judgement = "contradicted"
    elif 2 * agree > total and (claim.most or agree == total):
        judgement = "holds"
    elif 2 * agree > total and agree + noise == total:
        judgement = "holds but for noise"
    return replace(verdict, judgement=judgement)


def _reservation(experiment: Experiment, verdict: Verdict) -> str:
    """Say why a judgement is provisional; empty if it is final or open."""
    if verdict.judgement == "open":
        return ""
    decisive = [
        comparison
        for comparison in verdict.decided
        if verdict.judgement != "contradicted" or comparison.finding == "contradicts"
    ]
    fewest = min(estimate.n for comparison in decisive for pair in comparison.pairs for estimate in pair if estimate)
    reasons = [f"runs {experiment.remark}"] if experiment.truncated else []
    if fewest < experiment.runs_per_cell:
        reasons.append(f"cells with {fewest} of {experiment.runs_per_cell} runs")
    return ", ".join(reasons)


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
            label = {**settings, **(_difference(better, worse) if count > 1 else {})}
            lead, noise = _lead(claim, pairs), sum(_half_width(estimate) for pair in pairs for estimate in pair)
            yield Comparison(label, pairs, lead, None if lead is None else lead - claim.by, noise)


def _half_width(estimate: Estimate | None) -> float:
    """Half-width of a confidence interval; a published number without one counts as a point, a single run does not."""
    if estimate is None:
        return math.inf
    if math.isnan(estimate.ci):
        return math.inf if estimate.n else 0.0
    return estimate.ci


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
