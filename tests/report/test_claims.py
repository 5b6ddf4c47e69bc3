import pytest

from equipoise.experiments.files import load, targets
from equipoise.report.claims import decide, decide_published
from equipoise.report.summary import summarize
from tests.report.runs import COMPLETE, results, small


def words(numbers, experiment=None):
    experiment = experiment or small()
    return [verdict.word for verdict in decide(experiment, summarize(experiment, results(experiment, numbers)))]


def test_all_hold():
    assert words(COMPLETE) == ["holds", "holds", "holds"]


def test_one_counterexample_refutes_what_is_said_of_all_but_not_of_most():
    against = COMPLETE | {("texas", 10, "bal-o"): ([50, 51], 200)}  # slower as before, and now less accurate
    assert words(against) == ["does not hold", "does not hold", "holds"]


def test_half_is_not_most():
    slow = COMPLETE | {("cora", 2, "bal-o"): ([74, 76], 999)}  # two of four comparisons are against it now
    assert words(slow)[2] == "does not hold"


def test_a_lead_that_shrinks():
    shrinking = COMPLETE | {("cora", 2, "bal-o"): ([174, 176], 200)}
    assert words(shrinking) == ["holds", "does not hold", "holds"]


def test_equal_is_not_better():
    equal = COMPLETE | {("texas", 10, "bal-o"): ([50, 52], 200)}
    assert words(equal)[0] == "does not hold"


def test_without_runs_nothing_is_decided():
    assert words({}) == ["not enough runs"] * 3


def test_one_run_of_two_is_not_enough():
    thin = COMPLETE | {("texas", 10, "xav"): ([50], 100)}
    assert words(thin) == ["not enough runs", "not enough runs", "holds"]  # three of four are most already


def test_a_counterexample_decides_before_all_runs_are_there():
    early = {at: COMPLETE[at] for at in COMPLETE if at[0] == "cora"} | {("cora", 10, "bal-o"): ([10, 11], 200)}
    assert words(early)[0] == "does not hold"


def test_a_part_of_the_grid_does_not_decide_about_all_of_it():
    narrowed = small().narrowed(dataset=["cora"])
    part = {at: numbers for at, numbers in COMPLETE.items() if at[0] == "cora"}
    assert words(part, narrowed)[0] == "not enough runs"


def test_the_numbers_that_decide_are_kept():
    experiment = small()
    first, second, _ = decide(experiment, summarize(experiment, results(experiment, COMPLETE)))
    assert [comparison.place for comparison in first.comparisons] == [
        {"dataset": "cora", "depth": 10},
        {"dataset": "texas", "depth": 10},
    ]
    assert [comparison.lead for comparison in first.comparisons] == pytest.approx([79 - 25, 58 - 51])
    assert second.comparisons[0].lead == pytest.approx((79 - 25) - (75 - 71))


def test_pairs_and_margins():
    """Lists on both sides are pairs; a margin below zero is *not worse than*."""
    experiment = load("gat-v1")
    (verdict,) = decide_published(experiment)
    assert [comparison.place["init"] for comparison in verdict.comparisons[:2]] == ["bal-x > xav", "bal-o > xav"]
    assert verdict.word == "holds"
    balancing = decide_published(load("gcn"))[0]
    assert len(balancing.comparisons) == 2 * 4 * 2
    assert balancing.word == "holds"


PUBLISHED = {  # in how many of the comparisons that can be made the paper's own numbers are as claimed
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
def test_the_papers_own_numbers(name):
    found = [(verdict.true, len(verdict.decided)) for verdict in decide_published(load(name))]
    assert found == PUBLISHED[name]


@pytest.mark.parametrize("name", targets())
def test_every_claim_comes_to_a_verdict_without_runs(name):
    experiment = load(name)
    assert {verdict.word for verdict in decide(experiment, summarize(experiment, []))} <= {"not enough runs"}
