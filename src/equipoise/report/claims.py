"""What the paper says about a table, decided by numbers: holds, does not hold, or not enough runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from equipoise.experiments.experiment import At, Claim, Experiment, Value
from equipoise.report.comparison import published
from equipoise.report.summary import Estimate, Summary

Word = Literal["holds", "does not hold", "not enough runs"]
Place = dict[str, Value]


@dataclass(frozen=True)
class Comparison:
    """Two numbers of which the claim says that the first is better; or two leads, each of two numbers.

    Attributes:
        place: where they are compared: what both sides have in common.
        pairs: (better, worse), as estimates; for a claim that a lead grows the narrow one and then the wide one.
        lead: by how much ``better`` is ahead, or the lead has grown; ``None`` while a number is missing.
        true: whether that is enough for the claim.
    """

    place: Place
    pairs: tuple[tuple[Estimate | None, Estimate | None], ...]
    lead: float | None
    true: bool | None


@dataclass(frozen=True)
class Verdict:
    """A claim, the comparisons that decide it, and the word."""

    claim: Claim
    comparisons: tuple[Comparison, ...]
    word: Word

    @property
    def decided(self) -> list[Comparison]:
        """The comparisons whose numbers are all there."""
        return [comparison for comparison in self.comparisons if comparison.true is not None]

    @property
    def true(self) -> int:
        """In how many of these it is as claimed."""
        return sum(bool(comparison.true) for comparison in self.decided)


def decide(experiment: Experiment, summaries: Mapping[At, Summary]) -> list[Verdict]:
    """A verdict on every claim; a cell counts from two runs on, or with all it is to have."""
    verdicts = []
    for claim in experiment.claims:
        numbers = {
            at: number
            for at, summary in summaries.items()
            if (number := summary.accuracy if claim.measure == "accuracy" else summary.epochs)
            and number.n >= min(2, summary.wanted)
        }
        verdicts.append(judge(experiment, claim, numbers))
    return verdicts


def decide_published(experiment: Experiment) -> list[Verdict]:
    """The same by the published numbers."""
    return [judge(experiment, claim, published(experiment, claim.measure)) for claim in experiment.claims]


def judge(experiment: Experiment, claim: Claim, numbers: Mapping[At, Estimate]) -> Verdict:
    """The word on a claim.

    *holds* if every comparison is as claimed (more than half, where it is claimed of most), *does not hold* if that is
    out of reach, *not enough runs* until one of both is certain.
    """
    comparisons = tuple(_comparisons(experiment, claim, numbers))
    true = sum(comparison.true is True for comparison in comparisons)
    false = sum(comparison.true is False for comparison in comparisons)
    total = len(comparisons)
    word: Word = "not enough runs"
    if (2 * true > total) if claim.most else (total > 0 and true == total):
        word = "holds"
    elif (2 * false >= total > 0) if claim.most else false > 0:
        word = "does not hold"
    return Verdict(claim, comparisons, word)


def _comparisons(experiment: Experiment, claim: Claim, numbers: Mapping[At, Estimate]) -> Iterator[Comparison]:
    pairs = max(len(claim.better), len(claim.worse))
    sides = [(claim.better[i % len(claim.better)], claim.worse[i % len(claim.worse)]) for i in range(pairs)]
    ends = (claim.narrow, claim.wide) if claim.wide else ({},)
    for place in experiment.places(claim.where, without=(*claim.better[0], *claim.wide)):
        for better, worse in sides:
            found = tuple(
                (
                    numbers.get(experiment.at({**place, **end, **better})),
                    numbers.get(experiment.at({**place, **end, **worse})),
                )
                for end in ends
            )
            lead = _lead(claim, found)
            named = {**place, **(_difference(better, worse) if pairs > 1 else {})}
            yield Comparison(named, found, lead, None if lead is None else lead > claim.by)


def _lead(claim: Claim, pairs: tuple[tuple[Estimate | None, Estimate | None], ...]) -> float | None:
    leads = []
    for better, worse in pairs:
        if better is None or worse is None:
            return None
        ahead = better.mean - worse.mean
        leads.append(ahead if claim.measure == "accuracy" else -ahead)  # fewer epochs are better
    return leads[0] if len(leads) == 1 else leads[1] - leads[0]


def _difference(better: Mapping[str, Value], worse: Mapping[str, Value]) -> Place:
    """What tells several pairs of a claim apart: ``init: bal-o > xav``."""
    return {name: f"{better[name]} > {worse[name]}" for name in better if better[name] != worse[name]}
