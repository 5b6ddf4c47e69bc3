import pytest

from equipoise.experiments.parser import experiment_names, load_experiment
from equipoise.report.claims import judge_claims, judge_published
from equipoise.report.summary import summarize
from tests.report.runs import COMPLETE, make_results, small_experiment


def judgements(numbers, experiment=None):
    experiment = experiment or small_experiment()
    summaries = summarize(experiment, make_results(experiment, numbers))
    return [verdict.judgement for verdict in judge_claims(experiment, summaries)]


def test_complete_runs_confirm_all_claims():
    assert judgements(COMPLETE) == ["holds", "holds", "holds"]


def test_one_counterexample_refutes_a_claim_about_all_but_not_about_most():
    numbers = COMPLETE | {("texas", 10, "bal-o"): ([50, 51], 200)}
    assert judgements(numbers) == ["does not hold", "does not hold", "holds"]


def test_claim_about_most_needs_more_than_half():
    numbers = COMPLETE | {("cora", 2, "bal-o"): ([74, 76], 999)}  # false in two of four comparisons
    assert judgements(numbers)[2] == "does not hold"


def test_shrinking_lead_refutes_a_growing_lead():
    numbers = COMPLETE | {("cora", 2, "bal-o"): ([174, 176], 200)}
    assert judgements(numbers) == ["holds", "does not hold", "holds"]


def test_equal_means_do_not_count_as_better():
    numbers = COMPLETE | {("texas", 10, "bal-o"): ([50, 52], 200)}
    assert judgements(numbers)[0] == "does not hold"


def test_no_runs_are_not_enough():
    assert judgements({}) == ["not enough runs"] * 3


def test_one_of_two_runs_is_not_enough():
    numbers = COMPLETE | {("texas", 10, "xav"): ([50], 100)}
    assert judgements(numbers) == ["not enough runs", "not enough runs", "holds"]  # three of four are most already


def test_counterexample_decides_before_all_runs_are_available():
    numbers = {at: COMPLETE[at] for at in COMPLETE if at[0] == "cora"} | {("cora", 10, "bal-o"): ([10, 11], 200)}
    assert judgements(numbers)[0] == "does not hold"


def test_subset_of_the_grid_does_not_confirm_a_claim_about_all_of_it():
    subset = small_experiment().subset(dataset=["cora"])
    numbers = {at: number for at, number in COMPLETE.items() if at[0] == "cora"}
    assert judgements(numbers, subset)[0] == "not enough runs"


def test_verdict_has_the_compared_numbers():
    experiment = small_experiment()
    first, second, _ = judge_claims(experiment, summarize(experiment, make_results(experiment, COMPLETE)))
    assert [comparison.settings for comparison in first.comparisons] == [
        {"dataset": "cora", "depth": 10},
        {"dataset": "texas", "depth": 10},
    ]
    assert [comparison.lead for comparison in first.comparisons] == pytest.approx([79 - 25, 58 - 51])
    assert second.comparisons[0].lead == pytest.approx((79 - 25) - (75 - 71))


def test_pairs_and_margins():
    """Lists on both sides are compared pairwise; a negative margin means *not worse than*."""
    (verdict,) = judge_published(load_experiment("gat-v1"))
    assert [comparison.settings["init"] for comparison in verdict.comparisons[:2]] == ["bal-x > xav", "bal-o > xav"]
    assert verdict.judgement == "holds"
    balancing = judge_published(load_experiment("gcn"))[0]
    assert len(balancing.comparisons) == 2 * 4 * 2
    assert balancing.judgement == "holds"


PUBLISHED = {  # per claim: in how many comparisons the published numbers agree with it, of how many decided ones
    "sgd": [(22, 25), (23, 25), (8, 8), (0, 0)],
    "variations-sgd": [(23, 24), (3, 3), (2, 2), (1, 1), (1, 1)],
    "variations-adam": [(23, 24), (3, 3), (2, 2), (1, 1), (1, 1)],
    "gat-v1": [(4, 4)],
    "lipschitz": [(9, 9), (3, 3)],
    "gcn": [(16, 16), (24, 24)],
    "dynamics-10": [(1, 1)],
    "adam-gradients": [(8, 8), (0, 0)],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_against_the_claims(name):
    verdicts = judge_published(load_experiment(name))
    assert [(verdict.true, len(verdict.decided)) for verdict in verdicts] == PUBLISHED[name]


@pytest.mark.parametrize("name", experiment_names())
def test_every_claim_is_undecided_without_runs(name):
    experiment = load_experiment(name)
    verdicts = judge_claims(experiment, summarize(experiment, []))
    assert {verdict.judgement for verdict in verdicts} <= {"not enough runs"}
