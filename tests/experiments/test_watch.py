from equipoise.experiments.files import load
from equipoise.experiments.watch import Watch, unseen, watches


def test_only_what_no_result_has_is_watched():
    assert watches([load("sgd"), load("inits")]) == {}
    assert set(watches([load("dynamics-10")])) == {spec.key for spec in load("dynamics-10").specs}


def test_neurons_are_watched_where_they_are_drawn():
    assert all("balance" in watch.quantities for watch in watches([load("conservation")]).values())
    assert not any("balance" in watch.quantities for watch in watches([load("zero-change")]).values())


def test_a_short_run_is_looked_at_more_often():
    every = {epochs: next(iter(watches([load("dynamics-5").narrowed(epochs=epochs)]).values())) for epochs in (5, 200)}
    assert {epochs: watch.every for epochs, watch in every.items()} == {5: 1, 200: 5}
    assert {watch.every for watch in watches([load("dynamics-5")]).values()} == {25}


def test_a_run_of_two_figures_is_watched_for_both():
    few, many = Watch(25, ("change", "gradient")), Watch(50, ("balance", "gradient"))
    both = few.union(many)
    assert both == Watch(25, ("balance", "change", "gradient"))
    assert both.covers(few)
    assert both.covers(many)
    assert not few.covers(both)
    shared = load("dynamics-10"), load("relative-gradients")
    assert len(watches(shared)) == 4, "the two runs of the first are among the four of the second"


def test_what_is_still_to_be_seen():
    wanted = {"a": Watch(25, ("gradient",)), "b": Watch(25, ("gradient",)), "c": Watch(5, ("gradient",))}
    there = {"a": Watch(25, ("change", "gradient")), "c": Watch(25, ("gradient",))}
    assert unseen(wanted, there) == {"b", "c"}
