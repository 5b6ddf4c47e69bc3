"""A judged claim as text: verdict, the numbers that it rests on, and the table of its comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from equipoise.report.claims import Comparison, Judgement, Verdict
from equipoise.report.summary import MISSING, estimate_text, signed_text

PENDING = "pending"  # a comparison without two runs in each cell, or all runs of a smaller one
MAX_COMPARISONS = 6  # comparisons of a claim that are written out


@dataclass(frozen=True)
class ClaimText:
    """A judged claim as text.

    Attributes:
        judgement: one of the four judgements.
        verdict: the judgement in words, with *provisional* where it applies.
        statement, source: those of the claim.
        evidence: the numbers that it rests on.
        counts: what comparisons say about the claim → number of comparisons, from agreement to pending.
        columns, comparisons: the table of its comparisons.
    """

    judgement: Judgement
    verdict: str
    statement: str
    source: str
    evidence: str
    counts: Mapping[str, int]
    columns: Sequence[str] = ()
    comparisons: Sequence[Sequence[str]] = ()

    @property
    def has_runs(self) -> bool:
        """Whether any of its comparisons has enough runs."""
        return self.counts[PENDING] < sum(self.counts.values())

    @property
    def lacks_runs(self) -> bool:
        """Whether the claim is open and more runs are planned that may decide it."""
        return self.judgement == "open" and self.counts[PENDING] > 0

    @property
    def summary(self) -> str:
        """The counts in few words: ``12 of 27 agree, 6 noise, 9 pending``."""
        total = sum(self.counts.values())
        if not self.has_runs:
            return f"{total} {PENDING}"
        noise = sum(count for kind, count in self.counts.items() if kind.startswith("within the noise"))
        contradict = self.counts["contradict"]
        others = {"noise": noise, f"contradict{'s' * (contradict == 1)}": contradict, PENDING: self.counts[PENDING]}
        phrases = [f"{self.counts['agree']} of {total} agree", *(f"{n} {kind}" for kind, n in others.items() if n)]
        return ", ".join(phrases)


def claim_text(ours: Verdict, paper: Verdict) -> ClaimText:
    unit = "points" if ours.claim.measure == "accuracy" else "epochs"
    total, decided = len(ours.comparisons), ours.decided
    if decided:
        mean = sum(comparison.lead or 0.0 for comparison in decided) / len(decided)
        key = _key_comparisons(ours)
        sentence = f"{_count_text(ours)}; mean lead {signed_text(mean)} {unit}"
        sentence += "".join(f"; {_comparison_text(comparison, ours)}" for comparison in key[:MAX_COMPARISONS])
        sentence += f"; and {len(key) - MAX_COMPARISONS} more" if len(key) > MAX_COMPARISONS else ""
    else:
        sentence = f"{total} comparison{'s' if total != 1 else ''} {PENDING}"
    if ours.provisional:
        sentence += f". Provisional: {ours.provisional}"
    if paper.decided:
        published = replace(paper, comparisons=tuple(paper.decided))
        sentence += f". Published numbers: {_count_text(published)}"
    return ClaimText(
        judgement=ours.judgement,
        verdict=ours.text,
        statement=ours.claim.say,
        source=ours.claim.source,
        evidence=sentence + ".",
        counts={
            "agree": ours.count("agrees"),
            "within the noise, means agree": ours.leaning,
            "within the noise, means do not agree": ours.count("within the noise") - ours.leaning,
            "contradict": ours.count("contradicts"),
            PENDING: total - len(decided),
        },
        columns=["at", "better", "worse", f"lead ({unit})", "finding", "paper"],
        comparisons=[
            [
                *_comparison_cells(comparison, ours),
                _finding_text(comparison) or PENDING,
                _finding_text(published),
            ]
            for comparison, published in zip(ours.comparisons, paper.comparisons, strict=True)
        ],
    )


def _count_text(verdict: Verdict) -> str:
    """Count the comparisons by what they say about the claim; the parts add up to their number."""
    total, noise, leaning = len(verdict.comparisons), verdict.count("within the noise"), verdict.leaning
    counts = {
        f"{noise} within the noise (means agree in {leaning or 'none'})": noise,
        f"{verdict.count('contradicts')} contradicting": verdict.count("contradicts"),
        f"{total - len(verdict.decided)} {PENDING}": total - len(verdict.decided),
    }
    agreeing = f"{verdict.count('agrees')} of {total} comparison{'s' if total != 1 else ''} agreeing"
    return ", ".join([agreeing, *(text for text, count in counts.items() if count)])


def _finding_text(comparison: Comparison) -> str:
    """What a comparison says about its claim; empty while a number is missing."""
    leaning = comparison.finding == "within the noise" and comparison.means_agree
    return f"{comparison.finding or ''}{' (means agree)' if leaning else ''}"


def _key_comparisons(verdict: Verdict) -> list[Comparison]:
    """Return the contradictions, then those within the noise whose means do not agree; if none, the closest one."""
    ordered = sorted(verdict.decided, key=lambda one: (one.finding != "contradicts", one.surplus or 0.0))
    return [comparison for comparison in ordered if not comparison.means_agree] or ordered[:1]


def _comparison_text(comparison: Comparison, verdict: Verdict) -> str:
    at, better, worse, _ = _comparison_cells(comparison, verdict)
    pairs = " → ".join(f"{b} against {w}" for b, w in zip(better.split(" → "), worse.split(" → "), strict=True))
    finding = "closest" if comparison.means_agree else str(comparison.finding)
    return f"{finding} {f'at {at}' if at else ''}".rstrip() + f": {pairs}"


def _comparison_cells(comparison: Comparison, verdict: Verdict) -> list[str]:
    """Settings, both sides and the lead of a comparison as text."""
    digits = 1 if verdict.claim.measure == "accuracy" else 0
    settings = " ".join(
        f"L = {value}" if axis == "depth" else str(value) for axis, value in comparison.settings.items()
    )
    sides = zip(*comparison.pairs, strict=True)
    better, worse = (" → ".join(estimate_text(estimate, digits, MISSING) for estimate in side) for side in sides)
    return [settings, better, worse, "" if comparison.lead is None else signed_text(comparison.lead, digits)]
