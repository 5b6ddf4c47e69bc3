import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from equipoise.errors import ChoiceError, EquipoiseError, SpecError
from equipoise.experiments.results_csv import read_csv
from equipoise.experiments.spec import BALANCED_SCHEMES, CHOICES, DEFAULTS, RunSpec
from equipoise.init.schemes import SCHEMES
from equipoise.laws.rebalance import CRITERIA
from equipoise.nn.stack import CHOICES as NETWORK_CHOICES
from equipoise.training.optimizers import OPTIMIZERS

REQUIRED = {"dataset": "cora", "depth": 10, "lr": 0.05}

# A valid value other than the default of every field.
NON_DEFAULTS = {
    "dataset": "texas",
    "depth": 5,
    "lr": 0.1,
    "init": "bal-x",
    "seed": 1,
    "kind": "gat",
    "width": 32,
    "heads": 8,
    "concat": False,
    "out_heads": 8,
    "activation": "elu",
    "dropout": 0.6,
    "attention_dropout": 0.6,
    "input_dropout": 0.6,
    "share_weights": False,
    "bias": True,
    "skip": "linear",
    "norm": "layer",
    "jk": "cat",
    "undirected": True,
    "optimizer": "adam",
    "weight_decay": 0.0005,
    "epochs": 200,
    "stop_loss": 1e-5,
    "patience": 100,
    "beta": 1.0,
    "clip": 1.0,
    "rebalance": 10,
    "rebalance_criterion": "gradients",
    "rebalance_moments": False,
    "calibrate": True,
}
LATER = (
    "norm",
    "jk",
    "clip",
    "rebalance",
    "rebalance_criterion",
    "rebalance_moments",
    "calibrate",
)  # fields added after the first stores


def spec(**settings):
    return RunSpec(**{**REQUIRED, "init": "bal-o", **settings})


def test_key_is_stable():
    """Existing stores rely on the keys: neither the canonical form nor a default may ever change."""
    assert RunSpec(**REQUIRED).key == "43edb3407b59527b"
    first_fields = {name: value for name, value in NON_DEFAULTS.items() if name not in LATER}
    assert RunSpec(**first_fields).key == "088606c3f6377e7c"  # fields added later do not change it


def test_published_runs_keep_their_keys():
    """The keys of results/runs.csv follow from their settings, in this version as in the one that wrote them."""
    table = Path(__file__).parents[2] / "results" / "runs.csv"
    lines = table.read_text(encoding="utf-8").splitlines()[1:]
    keys = [result.spec.key for result in read_csv(table)]
    assert keys == [line.split(",")[0] for line in lines]
    assert len(keys) >= 296


def test_calibrated_default_is_refused():
    with pytest.raises(SpecError, match="not calibrated"):
        spec(init="default", calibrate=True)


def test_metric_is_a_property_of_the_data_set():
    assert spec(dataset="minesweeper").metric == "roc_auc"
    assert spec(dataset="cora").metric == "accuracy"
    assert "metric" not in spec(dataset="minesweeper").to_dict()  # nor in the key


def test_key_is_equal_in_another_process():
    program = "from equipoise.experiments.spec import RunSpec; print(RunSpec(dataset='cora', depth=10, lr=0.05).key)"
    process = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONHASHSEED": "7", **_environment()}, capture_output=True, check=True
    )
    assert process.stdout.decode().strip() == RunSpec(**REQUIRED).key


def _environment():
    return {"PYTHONPATH": ":".join(sys.path)}


@pytest.mark.parametrize("name", [field.name for field in fields(RunSpec)])
def test_every_field_changes_the_key(name):
    assert spec(**{name: NON_DEFAULTS[name]}).key != spec().key


def test_key_ignores_defaults():
    given = {name: value for name, value in DEFAULTS.items() if name != "init"}
    assert spec(**given).key == spec().key


@pytest.mark.parametrize(
    "same",
    [
        {"dataset": "Cora"},
        {"depth": np.int64(10)},
        {"lr": np.float64(0.05)},
        {"weight_decay": 0},
        {"dropout": -0.0},
        {"epochs": np.int32(5000)},
    ],
)
def test_equivalent_values_give_equal_specs(same):
    assert spec(**same) == spec()
    assert spec(**same).key == spec().key


def test_dict_round_trip():
    full = RunSpec(**NON_DEFAULTS)
    assert full.to_dict() == NON_DEFAULTS
    assert RunSpec.from_dict(full.to_dict()) == full
    assert RunSpec.from_dict(REQUIRED) == RunSpec(**REQUIRED)


def test_is_hashable_and_replaceable():
    assert {spec(), replace(spec(), seed=0)} == {spec()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "coar"}, "unknown dataset 'coar'\n  remedy: did you mean 'cora'?"),
        ({"init": "bal-oo"}, "unknown init 'bal-oo'\n  remedy: did you mean 'bal-o'?"),
        ({"kind": "gatv3"}, "unknown kind"),
        ({"activation": None}, "unknown activation None"),
        ({"skip": "linaer"}, "did you mean 'linear'?"),
        ({"optimizer": "SGD"}, "unknown optimizer 'SGD'"),
        ({"depth": 0}, "depth must be a whole number, 1 or more (and below 2**63)\n  where:  depth=0"),
        ({"depth": 2.5}, "where:  depth=2.5"),
        ({"depth": "10"}, "where:  depth='10'"),
        ({"heads": True}, "where:  heads=True"),
        ({"seed": -1}, "seed must be a whole number, 0 or more"),
        ({"seed": None}, "seed must be a whole number"),
        ({"patience": 0}, "patience must be a whole number, 1 or more"),
        ({"lr": 0}, "lr must be a number above 0"),
        ({"lr": None}, "lr must be a number"),
        ({"lr": float("nan")}, "lr must be a number"),
        ({"beta": -1.0}, "beta must be a number above 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1"),
        ({"attention_dropout": -0.1}, "attention_dropout must be at least 0"),
        ({"weight_decay": -1}, "weight_decay must be 0 or more"),
        ({"bias": 1}, "bias must be true or false"),
        ({"init": "xav", "beta": 2.0}, "xav is not a balanced scheme and takes no beta"),
    ],
)
def test_invalid_value_is_named_with_its_field(settings, message):
    with pytest.raises(EquipoiseError) as error:
        spec(**settings)
    assert message in str(error.value)


def test_unknown_setting_is_named():
    with pytest.raises(ChoiceError, match=r"unknown setting 'dpeth'\n.*did you mean 'depth'"):
        RunSpec.from_dict({**REQUIRED, "dpeth": 3})


def test_missing_setting_is_named():
    with pytest.raises(SpecError, match="a run needs depth and lr"):
        RunSpec.from_dict({"dataset": "cora"})


def test_choices_equal_the_registries():
    assert CHOICES["init"] == ("default", *SCHEMES)
    for name, choices in NETWORK_CHOICES.items():
        assert CHOICES[name] == choices
    assert CHOICES["optimizer"] == tuple(OPTIMIZERS)
    assert CHOICES["rebalance_criterion"] == CRITERIA
    assert tuple(name for name, scheme in SCHEMES.items() if scheme.balanced and scheme.draws) == BALANCED_SCHEMES


LIGHT_MODULES = [
    *(f"equipoise.experiments.{name}" for name in ("spec", "experiment", "parser", "store", "result", "sweep")),
    *(f"equipoise.experiments.{name}" for name in ("recording_plan", "results_csv", "cost")),
    *("equipoise.data.catalog", "equipoise.data.files"),
]


def test_light_modules_do_not_import_torch():
    heavy = ("torch", "torch_geometric", "numba", "pandas", "scipy")
    program = f"import sys, {', '.join(LIGHT_MODULES)}; print([name for name in {heavy} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", program], env=_environment(), capture_output=True, check=True)
    assert process.stdout.decode().strip() == "[]"
