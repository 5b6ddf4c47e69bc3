import pytest

from equipoise.bench.cases import CASES, NAMES, choose
from equipoise.bench.goals import GOALS
from equipoise.bench.graphs import graph_of, random_graph
from equipoise.bench.scaling import SWEEPS, sweep_cases, swept
from equipoise.errors import ChoiceError


def test_every_goal_names_something_that_can_be_measured():
    assert {goal.case for goal in GOALS} <= set(NAMES)


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_one_graph(name):
    case = CASES[name]
    assert bool(case.dataset) != bool(case.nodes and case.edges and case.features)
    assert len(case.widths(5, 3)) == case.layers + 1


def test_huge_is_measured_only_if_asked_for():
    assert "huge" not in choose([])
    assert choose([], huge=True)[-1] == "huge"
    assert choose(["huge"], huge=True) == ["huge"]
    assert choose(["cora-2", "cora-2"]) == ["cora-2"]


def test_a_wrong_name_is_answered_with_the_nearest_and_all():
    with pytest.raises(ChoiceError, match=r"unknown case 'cora10'(.|\n)*did you mean 'cora-10'(.|\n)*scaling"):
        choose(["cora-2", "cora10"])


@pytest.mark.parametrize("over", SWEEPS)
@pytest.mark.parametrize("quick", [False, True])
def test_a_sweep_changes_one_thing(over, quick):
    cases = sweep_cases(over, quick=quick)
    values = [swept(case, over) for case in cases]
    assert values == sorted(set(values))
    assert len(values) >= 3
    others = {(c.nodes, c.edges, c.layers, c.width) for c in cases}
    assert len(others) == len(values)
    assert sum(len(set(column)) > 1 for column in zip(*others, strict=True)) == 1


def test_random_graphs_are_of_the_size_asked_for_and_repeat_themselves():
    data, again = (random_graph(200, 1000, 8) for _ in range(2))
    assert data.x.shape == (200, 8)
    assert data.edge_index.shape == (2, 1000)
    assert data.edge_index.equal(again.edge_index)
    assert bool((data.train_mask.int() + data.val_mask.int() + data.test_mask.int() == 1).all())


def test_symmetric_graphs_have_every_edge_both_ways_and_directed_ones_do_not():
    def edges(symmetric):
        return sorted(map(tuple, random_graph(50, 200, 2, symmetric=symmetric).edge_index.t().tolist()))

    assert edges(True) == sorted((v, u) for u, v in edges(True))
    assert edges(False) != sorted((v, u) for u, v in edges(False))


def test_neighbourhoods_are_of_very_different_size():
    degrees = random_graph(2000, 20000, 2).edge_index[1].bincount(minlength=2000)
    assert degrees.max() > 10 * degrees.float().mean()


def test_a_data_set_is_loaded_by_its_name():
    assert graph_of(CASES["synthetic-2"]).classes == 7
