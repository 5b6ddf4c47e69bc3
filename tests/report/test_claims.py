import pytest

from equipoise.experiments.parser import experiment_names, load_experiment, parse_experiment
from equipoise.report.claims import judge_claims, judge_published
from equipoise.report.summary import summarize
from tests.report.runs import COMPLETE, SMALL, make_results, small_experiment


def verdicts(numbers, experiment=None):
    experiment = experiment or small_experiment()
    return judge_claims(experiment, summarize(experiment, make_results(experiment, numbers)))


def judgements(numbers, experiment=None):
    return [verdict.judgement for verdict in verdicts(numbers, experiment)]


def test_complete_runs_confirm_all_claims():
    assert judgements(COMPLETE) == ["holds", "holds", "holds"]


def test_counterexample_contradicts_a_claim_about_all_but_not_about_most():
    numbers = COMPLETE | {("texas", 10, "bal-o"): ([20, 20.1], 200)}  # intervals apart: 20.05 ± 0.6 and 51 ± 12.7
    assert judgements(numbers) == ["contradicted", "contradicted", "holds"]


def test_claim_about_most_is_contradicted_by_half():
    numbers = COMPLETE | {("cora", 2, "bal-o"): ([74, 76], 999)}  # two of four comparisons, intervals of width zero
    assert judgements(numbers)[2] == "contradicted"


def test_shrinking_lead_contradicts_a_growing_lead():
    numbers = COMPLETE | {("cora", 2, "bal-o"): ([374, 374], 200)}
    assert judgements(numbers) == ["holds", "contradicted", "holds"]


def test_overlapping_intervals_are_noise():
    """One of two comparisons is not more than half; with a third that agrees, the claim holds but for the noise."""
    noisy = {("texas", 10, "bal-o"): ([50, 51], 200)}  # 50.5 ± 6.4 against 51 ± 12.7
    assert judgements(COMPLETE | noisy)[0] == "open"
    experiment = parse_experiment(SMALL.replace('"texas"]', '"texas", "cornell"]'), "small", "small.toml")
    more = {("cornell", 10, "xav"): ([30, 32], 9), ("cornell", 10, "bal-o"): ([40, 42], 9)}
    verdict = verdicts(COMPLETE | noisy | more, experiment)[0]
    assert verdict.judgement == "holds but for noise"
    assert verdict.text == "holds but for 1 comparison within the noise"
    assert [comparison.finding for comparison in verdict.comparisons] == ["agrees", "within the noise", "agrees"]


@pytest.mark.parametrize("accuracy", [51, 51 + 1e-13])
def test_rounding_does_not_decide_a_tie(accuracy):
    """Equal means do not agree with a claim, whatever the last bit is, and do not contradict it."""
    numbers = COMPLETE | {("texas", 10, "xav"): ([51, 51], 100), ("texas", 10, "bal-o"): ([accuracy] * 2, 200)}
    assert verdicts(numbers)[0].comparisons[1].finding == "within the noise"


def test_no_runs_leave_claims_open():
    assert judgements({}) == ["open"] * 3


def test_one_of_two_runs_is_not_enough():
    numbers = COMPLETE | {("texas", 10, "xav"): ([50], 100)}
    assert judgements(numbers) == ["open", "open", "holds"]  # three of four are most already


def test_counterexample_decides_before_all_runs_are_available():
    numbers = {at: COMPLETE[at] for at in COMPLETE if at[0] == "cora"} | {("cora", 10, "bal-o"): ([1, 1], 200)}
    numbers |= {("cora", 10, "xav"): ([20, 21], 300)}
    assert judgements(numbers)[0] == "contradicted"


def test_subset_of_the_grid_does_not_confirm_a_claim_about_all_of_it():
    subset = small_experiment().subset(dataset=["cora"])
    numbers = {at: number for at, number in COMPLETE.items() if at[0] == "cora"}
    assert judgements(numbers, subset)[0] == "open"


def test_truncated_runs_are_provisional():
    assert {verdict.provisional for verdict in verdicts(COMPLETE)} == {""}
    first, *_ = verdicts(COMPLETE, small_experiment().subset(epochs=100))
    assert (first.judgement, first.text) == ("holds", "holds (provisional)")
    assert first.provisional == "runs of at most 100 epochs instead of 5000"
    assert not verdicts(COMPLETE, small_experiment().subset(epochs=9000))[0].provisional


def test_single_runs_are_provisional_and_contradict_nothing():
    one_each = {at: (values[:1], epochs) for at, (values, epochs) in COMPLETE.items()}
    experiment = small_experiment().subset(seeds=1)
    assert {verdict.provisional for verdict in verdicts(one_each, experiment)} == {"cells with a single run"}
    swapped = one_each | {("cora", 10, "bal-o"): ([1], 200)}
    assert verdicts(swapped, experiment)[0].comparisons[0].finding == "within the noise"


def test_fewer_runs_than_the_file_has_are_provisional():
    experiment = parse_experiment(SMALL.replace("seed = [0, 1]", "seed = [0, 1, 2]"), "small", "small.toml")
    assert verdicts(COMPLETE, experiment)[0].provisional == "cells with 2 of 3 runs"
    assert verdicts(COMPLETE, experiment.subset(seeds=2))[0].provisional == "cells with 2 of 3 runs"


def test_contradiction_is_final_once_its_own_cells_are_complete():
    experiment = parse_experiment(SMALL.replace("seed = [0, 1]", "seed = [0, 1, 2]"), "small", "small.toml")
    complete = {("cora", 10, "xav"): ([78, 79, 80], 300), ("cora", 10, "bal-o"): ([20, 21, 22], 300)}
    verdict = verdicts(COMPLETE | complete, experiment)[0]
    assert (verdict.judgement, verdict.provisional) == ("contradicted", "")


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
    assert [(verdict.count("agrees"), len(verdict.decided)) for verdict in verdicts] == PUBLISHED[name]


@pytest.mark.parametrize("name", experiment_names())
def test_every_claim_is_undecided_without_runs(name):
    experiment = load_experiment(name)
    verdicts = judge_claims(experiment, summarize(experiment, []))
    assert {verdict.judgement for verdict in verdicts} <= {"open"}
