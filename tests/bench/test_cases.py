import subprocess
import sys

import pytest

from equipoise.bench.cases import (
    CASES,
    SCALING_SERIES,
    load_graph,
    random_graph,
    scaling_cases,
    scaling_value,
    select_cases,
)
from equipoise.errors import ChoiceError


@pytest.mark.parametrize("name", CASES)
def test_case_has_one_graph(name):
    case = CASES[name]
    assert bool(case.dataset) != bool(case.nodes and case.edges and case.features)
    assert len(case.widths(5, 3)) == case.layers + 1


def test_huge_is_measured_only_on_request():
    assert "huge" not in select_cases([])
    assert select_cases([], huge=True)[-1] == "huge"
    assert select_cases(["huge"], huge=True) == ["huge"]
    assert select_cases(["cora-2", "cora-2"]) == ["cora-2"]


def test_unknown_name_lists_choices_and_nearest_match():
    with pytest.raises(ChoiceError, match=r"unknown case 'cora10'(.|\n)*did you mean 'cora-10'(.|\n)*scaling"):
        select_cases(["cora-2", "cora10"])


@pytest.mark.parametrize("variable", SCALING_SERIES)
@pytest.mark.parametrize("quick", [False, True])
def test_scaling_series_varies_one_setting(variable, quick):
    cases = scaling_cases(variable, quick=quick)
    values = [scaling_value(case, variable) for case in cases]
    assert values == sorted(set(values))
    assert len(values) >= 3
    settings = {(c.nodes, c.edges, c.layers, c.width) for c in cases}
    assert len(settings) == len(values)
    assert sum(len(set(column)) > 1 for column in zip(*settings, strict=True)) == 1


def test_random_graph_has_requested_size_and_is_reproducible():
    first, second = (random_graph(200, 1000, 8) for _ in range(2))
    assert first.x.shape == (200, 8)
    assert first.edge_index.shape == (2, 1000)
    assert first.edge_index.equal(second.edge_index)
    assert bool((first.train_mask.int() + first.val_mask.int() + first.test_mask.int() == 1).all())


def test_only_symmetric_graphs_contain_both_directions():
    def edges(symmetric):
        return sorted(map(tuple, random_graph(50, 200, 2, symmetric=symmetric).edge_index.t().tolist()))

    assert edges(True) == sorted((v, u) for u, v in edges(True))
    assert edges(False) != sorted((v, u) for u, v in edges(False))


def test_degrees_vary_widely():
    degrees = random_graph(2000, 20000, 2).edge_index[1].bincount(minlength=2000)
    assert degrees.max() > 10 * degrees.float().mean()


def test_dataset_is_loaded_by_name():
    assert load_graph(CASES["synthetic-2"]).classes == 7


def test_case_names_do_not_import_torch():
    script = "import sys, equipoise.bench.cases; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
