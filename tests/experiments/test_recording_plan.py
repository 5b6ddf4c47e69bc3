from equipoise.experiments.parser import load_experiment
from equipoise.experiments.recording_plan import GROUPS, RecordingPlan, missing_recordings, recording_plans
from equipoise.training import recorder


def test_groups_are_those_of_the_recorder():
    assert GROUPS == recorder.GROUPS


def test_only_figures_of_recorded_quantities_need_recordings_of_one_run_per_cell():
    assert recording_plans([load_experiment("sgd"), load_experiment("inits")]) == {}
    dynamics = load_experiment("dynamics-10")
    assert len(dynamics.specs) == 10, "five runs per scheme, for the claims"
    assert set(recording_plans([dynamics])) == {spec.key for spec in dynamics.specs if spec.seed == 0}


def test_neurons_are_recorded_only_where_they_are_drawn():
    conservation, change = (recording_plans([load_experiment(name)]) for name in ("conservation", "zero-change"))
    assert all("balance" in plan.quantities for plan in conservation.values())
    assert not any("balance" in plan.quantities for plan in change.values())


def test_short_runs_are_sampled_more_often():
    def intervals(experiment):
        return {plan.every for plan in recording_plans([experiment]).values()}

    dynamics = load_experiment("dynamics-5")
    assert intervals(dynamics.subset(epochs=5)) == {1}
    assert intervals(dynamics.subset(epochs=200)) == {5}
    assert intervals(dynamics) == {25}


def test_plan_of_a_run_that_two_figures_share():
    few, many = RecordingPlan(25, ("change", "gradient")), RecordingPlan(50, ("balance", "gradient"))
    both = few.union(many)
    assert both == RecordingPlan(25, ("balance", "change", "gradient"))
    assert both.covers(few)
    assert both.covers(many)
    assert not few.covers(both)
    figures = load_experiment("dynamics-10"), load_experiment("relative-gradients")
    assert len(recording_plans(figures)) == 4, "the two runs of the first are among the four of the second"


def test_missing_recordings():
    wanted = {
        "a": RecordingPlan(25, ("gradient",)),
        "b": RecordingPlan(25, ("gradient",)),
        "c": RecordingPlan(5, ("gradient",)),
    }
    available = {"a": RecordingPlan(25, ("change", "gradient")), "c": RecordingPlan(25, ("gradient",))}
    assert missing_recordings(wanted, available) == {"b", "c"}
