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
    numbers = COMPLETE | {("texas", 10, "bal-o"): ([20, 20.1], 200)}  # intervals apart: 20.05 ± 0.6 and 51 ± 1.3
    assert judgements(numbers) == ["contradicted", "contradicted", "holds"]


def test_claim_about_most_is_contradicted_by_half():
    numbers = COMPLETE | {("cora", 2, "bal-o"): ([74, 76], 999)}  # two of four comparisons, intervals of width zero
    assert judgements(numbers)[2] == "contradicted"


def test_shrinking_lead_contradicts_a_growing_lead():
    numbers = COMPLETE | {("cora", 2, "bal-o"): ([374, 374], 200)}
    assert judgements(numbers) == ["holds", "contradicted", "holds"]


def test_noise_of_a_growing_lead_is_that_of_four_cells():
    """The lead grows by 3 points; each cell is known to 1.3 points, the growth of the lead to 5.1."""
    numbers = COMPLETE | {("cora", 2, "bal-o"): ([121.9, 122.1], 200)}
    growing = verdicts(numbers)[1].comparisons[0]
    assert (growing.lead, growing.noise) == (pytest.approx(3), pytest.approx(4 * 1.2706, abs=1e-3))
    assert growing.finding == "within the noise"


def test_overlapping_intervals_are_noise():
    """One of two comparisons is not more than half; with a third that agrees, the claim holds but for the noise."""
    noisy = {("texas", 10, "bal-o"): ([50, 51], 200)}  # 50.5 ± 6.4 against 51 ± 1.3
    assert judgements(COMPLETE | noisy)[0] == "open"
    experiment = parse_experiment(SMALL.replace('"texas"]', '"texas", "cornell"]'), "small", "small.toml")
    more = {("cornell", 10, "xav"): ([30.9, 31], 9), ("cornell", 10, "bal-o"): ([40.9, 41], 9)}
    verdict = verdicts(COMPLETE | noisy | more, experiment)[0]
    assert verdict.judgement == "holds but for noise"
    assert verdict.text == "holds but for 1 comparison within the noise"
    assert [comparison.finding for comparison in verdict.comparisons] == ["agrees", "within the noise", "agrees"]


@pytest.mark.parametrize("sign", [1, -1])
def test_noise_counts_the_same_in_both_directions(sign):
    """Exchanging the two sides exchanges *agrees* and *contradicts* and leaves the noise as it is."""
    text = (
        SMALL
        if sign > 0
        else SMALL.replace('better = { init = "bal-o" }\nworse = { init = "xav" }', "SWAP").replace(
            "SWAP", 'better = { init = "xav" }\nworse = { init = "bal-o" }'
        )
    )
    experiment = parse_experiment(text, "small", "small.toml")
    overlapping = {("texas", 10, "xav"): ([47, 55], 100), ("texas", 10, "bal-o"): ([54, 62], 200)}  # ± 50.8
    clear, noisy = verdicts(COMPLETE | overlapping, experiment)[0].comparisons
    assert (clear.finding, clear.means_agree) == (("agrees", True) if sign > 0 else ("contradicts", False))
    assert (noisy.finding, noisy.means_agree) == ("within the noise", sign > 0)
    assert noisy.surplus == pytest.approx(7 * sign)


def test_means_within_the_noise_do_not_confirm_a_claim():
    """The only comparison of a claim: 79.7 ± 0.9 against 78.2 ± 0.7 overlap at 78.8 and 78.9."""
    experiment = parse_experiment(
        SMALL.replace("where = { depth = 10 }", 'where = { depth = 10, dataset = "cora" }'), "small", "small.toml"
    )
    close = {("cora", 10, "xav"): ([78.13, 78.27], 300), ("cora", 10, "bal-o"): ([79.63, 79.77], 200)}
    verdict = verdicts(COMPLETE | close, experiment)[0]  # 78.2 ± 0.9 and 79.7 ± 0.9
    assert (verdict.judgement, verdict.leaning, verdict.count("within the noise")) == ("open", 1, 1)
    apart = {("cora", 10, "xav"): ([78.15, 78.2], 300), ("cora", 10, "bal-o"): ([79.65, 79.7], 200)}  # ± 0.3
    assert verdicts(COMPLETE | apart, experiment)[0].judgement == "holds"


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


def test_single_runs_neither_confirm_nor_contradict():
    one_each = {at: (values[:1], epochs) for at, (values, epochs) in COMPLETE.items()}
    experiment = small_experiment().subset(seeds=1)
    assert judgements(one_each, experiment) == ["open"] * 3
    first = verdicts(one_each, experiment)[0]
    assert (first.count("within the noise"), first.leaning) == (2, 2)
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
    assert [comparison.surplus for comparison in verdict.comparisons[:2]] == pytest.approx([0.08 + 1, 0.05 + 1])
    balancing = judge_published(load_experiment("gcn"))[0]
    assert len(balancing.comparisons) == 2 * 4 * 2
    assert all(comparison.means_agree for comparison in balancing.comparisons)


PUBLISHED = {  # per claim: comparisons in which the published numbers agree, are within the noise, contradict
    "sgd": [(13, 11, 1), (13, 12, 0), (5, 3, 0), (0, 0, 0)],
    "variations-sgd": [(19, 4, 1), (2, 1, 0), (2, 0, 0), (0, 1, 0), (1, 0, 0)],
    "variations-adam": [(13, 11, 0), (3, 0, 0), (2, 0, 0), (1, 0, 0), (1, 0, 0)],
    "gat-v1": [(2, 2, 0)],
    "lipschitz": [(9, 0, 0), (3, 0, 0)],
    "gcn": [(8, 8, 0), (18, 6, 0)],
    "dynamics-10": [(1, 0, 0)],
    "adam-gradients": [(8, 0, 0), (0, 0, 0)],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_against_the_claims(name):
    verdicts = judge_published(load_experiment(name))
    findings = ("agrees", "within the noise", "contradicts")
    assert [tuple(map(verdict.count, findings)) for verdict in verdicts] == PUBLISHED[name]


@pytest.mark.parametrize("name", experiment_names())
def test_every_claim_is_undecided_without_runs(name):
    experiment = load_experiment(name)
    verdicts = judge_claims(experiment, summarize(experiment, []))
    assert {verdict.judgement for verdict in verdicts} <= {"open"}
