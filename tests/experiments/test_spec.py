import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from equipoise.errors import ChoiceError, EquipoiseError, SpecError
from equipoise.experiments.spec import DEFAULTS, RunSpec

PLAIN = {"dataset": "cora", "depth": 10, "lr": 0.05}

# Another valid value of every field.
OTHERS = {
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
    "undirected": True,
    "optimizer": "adam",
    "weight_decay": 0.0005,
    "epochs": 200,
    "stop_loss": 1e-5,
    "patience": 100,
    "beta": 1.0,
}


def spec(**settings):
    return RunSpec(**{**PLAIN, "init": "bal-o", **settings})


def test_the_key_is_pinned():
    """A store of last year must be found again: neither the canonical form nor a default may ever change."""
    assert RunSpec(**PLAIN).key == "43edb3407b59527b"
    assert RunSpec(**OTHERS).key == "088606c3f6377e7c"


def test_the_key_is_the_same_in_another_process():
    program = "from equipoise.experiments.spec import RunSpec; print(RunSpec(dataset='cora', depth=10, lr=0.05).key)"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONHASHSEED": "7", **_environment()}, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == RunSpec(**PLAIN).key


def _environment():
    return {"PYTHONPATH": ":".join(sys.path)}


@pytest.mark.parametrize("name", [field.name for field in fields(RunSpec)])
def test_every_field_decides_the_key(name):
    assert spec(**{name: OTHERS[name]}).key != spec().key


def test_defaults_are_left_out_of_the_key():
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
def test_numbers_and_names_written_otherwise_are_the_same_run(same):
    assert spec(**same) == spec()
    assert spec(**same).key == spec().key


def test_goes_to_plain_data_and_back():
    everything = RunSpec(**OTHERS)
    assert everything.to_dict() == OTHERS
    assert RunSpec.from_dict(everything.to_dict()) == everything
    assert RunSpec.from_dict(PLAIN) == RunSpec(**PLAIN)


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
        ({"depth": 0}, "depth must be a whole number, 1 or more\n  where:  depth=0"),
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
        ({"init": "xav", "beta": 2.0}, "xav balances nothing"),
    ],
)
def test_a_mistake_is_named_with_its_field(settings, message):
    with pytest.raises(EquipoiseError) as error:
        spec(**settings)
    assert message in str(error.value)


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(ChoiceError, match=r"unknown setting 'dpeth'\n.*did you mean 'depth'"):
        RunSpec.from_dict({**PLAIN, "dpeth": 3})


def test_what_a_run_cannot_do_without_is_named():
    with pytest.raises(SpecError, match="a run needs depth and lr"):
        RunSpec.from_dict({"dataset": "cora"})
