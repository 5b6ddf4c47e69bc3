"""Consistency of the paper's experiment files: sizes, published numbers, provenance and claims."""

from collections import Counter
from math import prod

import pytest

from equipoise.experiments.parser import experiment_names, further_experiment_names, load_experiment

TABLES = ("sgd", "variations-sgd", "variations-adam", "gat-v1", "lipschitz", "gcn", "datasets")
LATER = ("dynamic-rescaling",)  # of the authors' next paper
FIGURES = (
    *("cora-widths", "adam", "inits", "omega-gat", "conservation", "dynamics-5", "dynamics-10"),
    *("relative-gradients", "zero-change", "parameter-change", "adam-gradients"),
)


def test_all_tables_and_figures_exist():
    assert set(experiment_names()) == {*TABLES, *LATER, *FIGURES}


@pytest.mark.parametrize("name", experiment_names() + further_experiment_names())
def test_grid_has_the_stated_size(name):
    experiment = load_experiment(name)  # compares the number of runs with the one in the file
    assert len(experiment.cells) == prod(len(values) for values in experiment.axes.values())
    assert len({cell.coordinates for cell in experiment.cells}) == len(experiment.cells)
    keys = Counter(spec.key for cell in experiment.cells for spec in cell.specs)
    assert max(keys.values(), default=1) == 1, "two cells of a table share a run"


@pytest.mark.parametrize("name", experiment_names())
def test_published_cells_belong_to_the_grid(name):
    experiment = load_experiment(name)
    assert experiment.published.keys() <= {cell.coordinates for cell in experiment.cells}
    for numbers in experiment.published.values():
        if experiment.kind != "data":
            assert 0 < numbers["accuracy"] < 100
            assert numbers.get("ci", 0.0) >= 0


@pytest.mark.parametrize("name", experiment_names() + further_experiment_names())
def test_every_setting_has_its_provenance(name):
    experiment = load_experiment(name)
    runs = [spec.to_dict() for spec in experiment.specs]
    reference = load_experiment("sgd").specs[0].to_dict()
    settings = {field for field in reference if any(run[field] != reference[field] for run in runs)}
    settings |= {axis for axis in experiment.axes if axis != "variant"}
    assert settings <= experiment.provenance.keys()
    assert all(text.split(":")[0].split()[0] in ("paper", "scripts", "ours") for text in experiment.provenance.values())


@pytest.mark.parametrize("name", [*TABLES[:-1], *LATER, *FIGURES, *further_experiment_names()])
def test_claims_have_comparisons(name):
    experiment = load_experiment(name)
    for claim in experiment.claims:
        fixed = (*claim.better[0], *claim.wide)
        assert list(experiment.combinations(claim.where, without=fixed)), claim.say


# Transcribed from the paper a second time, where an error would be easy: first, last and unusual cells.
CELLS = {
    "sgd": [
        ({"dataset": "citeseer", "init": "xav", "depth": 2}, 71.82, 2.73),
        ({"dataset": "actor", "init": "xav", "depth": 5}, 24.60, 0.93),
        ({"dataset": "pubmed", "init": "bal-o", "depth": 20}, 78.20, 0.61),
        ({"dataset": "texas", "init": "bal-o", "depth": 10}, 56.76, 0.00),
        ({"dataset": "squirrel", "init": "bal-x", "depth": 40}, 25.38, 4.62),
        ({"dataset": "wisconsin", "init": "bal-o", "depth": 40}, 48.24, 4.52),
        ({"dataset": "cora", "init": "bal-o", "depth": 10}, 79.46, 1.34),
    ],
    "variations-sgd": [
        ({"variant": "activation = ELU", "depth": 10, "init": "bal-o"}, 47.76, 7.39),
        ({"variant": "dropout = 0.6", "depth": 5, "init": "xav"}, 42.14, 15.97),
        ({"variant": "weight sharing = False", "depth": 10, "init": "bal-x"}, 76.04, 1.77),
    ],
    "variations-adam": [
        ({"variant": "weight decay = 0.0005", "depth": 10, "init": "xav"}, 28.74, 12.04),
        ({"variant": "heads = 8", "depth": 10, "init": "bal-o"}, 79.74, 1.10),
    ],
    "gat-v1": [({"dataset": "pubmed", "init": "bal-o"}, 78.56, 0.20)],
    "gcn": [
        ({"dataset": "cora", "depth": 80, "init": "llortho"}, 38.9, 21.3),
        ({"dataset": "citeseer", "depth": 40, "init": "bal-x"}, 37.3, 92.8),
    ],
    "lipschitz": [
        ({"dataset": "cora", "depth": 2, "variant": "Lip. Norm."}, 82.1, None),
        ({"dataset": "pubmed", "depth": 40, "variant": "Bal_O Init."}, 77.5, None),
    ],
    "adam-gradients": [({"depth": 10, "init": "xav-z"}, 68.8, None)],
}


def test_figures_and_the_main_table_have_a_drawing():
    assert {name: load_experiment(name).figure is not None for name in experiment_names()} == {
        **dict.fromkeys((*TABLES, *LATER), False),
        **dict.fromkeys((*FIGURES, "sgd"), True),
    }


@pytest.mark.parametrize("name", CELLS)
def test_published_numbers(name):
    experiment = load_experiment(name)
    for values, accuracy, ci in CELLS[name]:
        numbers = experiment.published[experiment.coordinates(values)]
        assert (numbers["accuracy"], numbers.get("ci")) == (accuracy, ci), values


def test_number_of_published_cells():
    assert {name: len(load_experiment(name).published) for name in TABLES} == {
        "sgd": 120 + 6,  # Table 2, and Cora at two depths
        "variations-sgd": 36,
        "variations-adam": 36,
        "gat-v1": 6,
        "lipschitz": 30,
        "gcn": 56,
        "datasets": 9,
    }


# Sums over the printed tables detect a changed digit in any cell.
SUMS = {
    "sgd": (5562.59 + 412.10, 477.19 + 26.62),  # Table 2, and the first two rows of Table 3
    "variations-sgd": (2362.22, 147.56),
    "variations-adam": (2637.92, 70.38),
    "gat-v1": (489.09, 3.15),
    "lipschitz": (1900.0, 0.0),
    "gcn": (3033.0, 681.3),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_published_numbers(name):
    cells = load_experiment(name).published.values()
    sums = [sum(cell.get(measure, 0.0) for cell in cells) for measure in ("accuracy", "ci")]
    assert sums == pytest.approx(SUMS[name], abs=1e-6)


@pytest.mark.parametrize(
    ("dataset", "depth", "lr"),
    [
        *(("cora", 5, 0.1), ("pubmed", 20, 0.05), ("citeseer", 40, 0.005)),
        *(("actor", 2, 0.05), ("texas", 10, 0.01), ("squirrel", 20, 0.005), ("wisconsin", 40, 0.0005)),
    ],
)
def test_learning_rates_of_sgd(dataset, depth, lr):
    cells = load_experiment("sgd").subset(dataset=[dataset], depth=[depth]).specs
    assert {spec.lr for spec in cells} == {lr}
    assert {(spec.width, spec.optimizer, spec.epochs) for spec in cells} == {(64, "sgd", 5000)}


def test_equal_cells_of_two_tables_share_their_runs():
    """The network without variation is Cora's row of the table \"sgd\", so its runs are executed once."""
    shared = {spec.key for spec in load_experiment("sgd").specs} & {
        spec.key for spec in load_experiment("variations-sgd").specs
    }
    assert len(shared) == 2 * 3 * 5
