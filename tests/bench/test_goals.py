import pytest

from equipoise.bench.goals import GOALS
from equipoise.bench.report import OURS, PYG, FirstCall, Report, Step, Timing, Watching

REPORT = Report(
    timings=[
        Timing("cora-10", 1, {OURS: [9.0, 10.0, 30.0], PYG: [120.0], "PyG sparse": [110.0], "DGL": [50.0]}, {}, 8.0),
        Timing("pubmed-10", 1, {"equipoise": [100.0], "PyG": [700.0]}),
        Timing("pubmed-10", 2, {"equipoise": [50.0], "PyG": [400.0]}),
        Timing("cora-80", 1, {"equipoise": [310.0]}),
    ],
    steps=[
        Step("large", "equipoise", 2000.0, 10**8, 10**9),
        Step("large", "PyG", 60_000.0, 10**9, 2 * 10**9),
        Step("huge", "equipoise", 90_000.0, 5 * 2**30, 15 * 2**30),
    ],
    first_call=FirstCall(12.0, 1.5),
    watching=Watching("recorder", {"everything": 10.0}, {"everything": 3.0}),
)


@pytest.mark.parametrize(
    ("what", "measured", "reached"),
    [
        ("Cora, 10 layers: epoch against PyG's best", 11.0, True),
        ("Cora, 10 layers: epoch against the floor", 1.25, True),
        ("Pubmed, 10 layers: epoch against PyG's best", 7.0, False),
        ("Pubmed, 10 layers: two threads", 2.0, True),
        ("169k nodes", 30.0, True),
        ("the same: PyG's peak memory", 10.0, False),
        ("2.4M nodes", 15.0, True),
        ("first call, nothing", 12.0, True),
        ("first call, compiled", 1.5, False),
        ("Cora, 80 layers", 0.31, False),
        ("Cora, 1000 layers", None, None),
        ("Citeseer", None, None),
        ("Cora, 10 layers: everything recorded", 30.0, False),
        ("the same at every 25th", 1.2, True),
    ],
)
def test_goals_by_hand(what, measured, reached):
    (goal,) = (goal for goal in GOALS if goal.what.startswith(what))
    plain = goal.to_dict(REPORT)
    assert plain["measured"] == (None if measured is None else pytest.approx(measured))
    assert plain["reached"] is reached
