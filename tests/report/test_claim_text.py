from equipoise.experiments.parser import load_experiment
from equipoise.report.tables import table_report
from tests.report.runs import COMPLETE, small_report


def test_claims_say_how_many_comparisons_are_within_the_noise_and_which_way_their_means_point():
    noisy = {("cora", 10, "bal-o"): ([20, 34], 200), ("texas", 10, "bal-o"): ([40, 60], 200)}  # above, below xav
    (claim, *_) = small_report(COMPLETE | noisy).claims
    assert (claim.verdict, claim.summary) == ("open", "0 of 2 agree, 2 noise")
    assert claim.counts == {
        "agree": 0,
        "within the noise, means agree": 1,
        "within the noise, means do not agree": 1,
        "contradict": 0,
        "pending": 0,
    }
    assert claim.evidence.startswith("0 of 2 comparisons agreeing, 2 within the noise (means agree in 1); mean lead")
    assert "within the noise at texas L = 10: 50.0 ± 127.1 against 51.0 ± 1.3" in claim.evidence
    assert "at cora L = 10" not in claim.evidence, "only those whose means do not agree are written out"
    assert [row[4] for row in claim.comparisons] == ["within the noise (means agree)", "within the noise"]


def test_every_comparison_of_a_claim_counts_once():
    for name in ("sgd", "lipschitz", "gcn"):
        for claim in table_report(load_experiment(name), []).claims:
            assert sum(claim.counts.values()) == claim.counts["pending"] == len(claim.comparisons)
            assert (claim.lacks_runs, claim.has_runs) == (True, False)
    assert [sum(claim.counts.values()) for claim in small_report().claims] == [2, 2, 4]
    assert not any(claim.lacks_runs for claim in small_report().claims)


def test_claims_have_a_table_of_comparisons():
    first, growing, _ = small_report({at: COMPLETE[at] for at in COMPLETE if at[0] == "cora"}).claims
    assert list(first.columns) == ["at", "better", "worse", "lead (points)", "finding", "paper"]
    assert first.comparisons == [
        ["cora L = 10", "79.0 ± 1.3", "25.0 ± 1.3", "+54.0", "agrees", "agrees"],
        ["texas L = 10", "missing", "missing", "", "pending", ""],
    ]
    assert growing.comparisons[0][1] == "75.0 ± 1.3 → 79.0 ± 1.3"
