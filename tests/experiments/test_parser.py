import re
from dataclasses import fields
from pathlib import Path

import pytest

from equipoise.errors import ChoiceError, EquipoiseError, SpecError
from equipoise.experiments.parser import load_experiment, parse_experiment
from equipoise.experiments.spec import RunSpec

CUSTOM = """
title = "Heads on a small graph"
runs = 24

[grid]
dataset = "synthetic-citation"
depth = [2, 5]
init = ["xav", "bal-o"]
seed = [0, 1, 2]
lr = 0.1
epochs = 20

[variants]
one = {}
four = { heads = 4, width = 16 }

[[set]]
where = { depth = 5, variant = "four" }
lr = 0.05

[[published]]
variant = "one"
init = "xav"
depth = [2, 5]
accuracy = [70, 60.5]
ci = [1.5, 2.0]

[[claims]]
say = "bal-o is better"
better = { init = "bal-o" }
worse = { init = "xav" }
where = { depth = 5 }
"""


def test_lists_are_axes_and_single_values_are_fixed():
    custom = parse_experiment(CUSTOM, "custom", "custom.toml")
    assert list(custom.axes) == ["variant", "depth", "init"]
    assert len(custom.cells) == 8
    assert {spec.epochs for spec in custom.specs} == {20}
    learning_rates = {cell.coordinates: cell.specs[0].lr for cell in custom.cells}
    assert {coordinates for coordinates, lr in learning_rates.items() if lr == 0.05} == {
        ("four", 5, "xav"),
        ("four", 5, "bal-o"),
    }
    assert {(spec.heads, spec.width) for spec in custom.specs} == {(1, 64), (4, 16)}
    assert [spec.seed for spec in custom.cells[0].specs] == [0, 1, 2]
    assert custom.published[("one", 5, "xav")] == {"accuracy": 60.5, "ci": 2.0}


def test_compared_axis_varies_fastest():
    custom = parse_experiment(CUSTOM.replace("runs = 24", 'compare = "variant"'), "custom", "custom.toml")
    assert list(custom.axes) == ["depth", "init", "variant"]
    assert custom.coordinates({"variant": "one", "init": "xav", "depth": 5}) in custom.published


def test_custom_file_is_loaded_by_path(tmp_path):
    (tmp_path / "custom.toml").write_text(CUSTOM)
    custom = load_experiment(tmp_path / "custom.toml")
    assert (custom.name, len(custom.specs)) == ("custom", 24)


def test_example_of_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "guide" / "experiments.md").read_text(encoding="utf-8")
    example = text.split("```toml\n")[1].split("```")[0]
    custom = parse_experiment(example, "my", "my.toml")
    assert (len(custom.specs), len(custom.published), len(custom.claims)) == (40, 2, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("depth = [2, 5]\ninit", "dpeth = [2, 5]\ninit", "unknown setting 'dpeth'\n  where:  custom.toml, [grid]"),
        (
            '"bal-o"]',
            '"bal-oo"]',
            "unknown init 'bal-oo'\n  where:  custom.toml, [grid]\n  remedy: did you mean 'bal-o'?",
        ),
        ("depth = [2, 5]\ninit", "depth = [2, 0]\ninit", "where:  custom.toml, [grid], depth=0"),
        ("depth = [2, 5]\ninit", "depth = [2, 2]\ninit", "depth needs at least one value and no duplicates"),
        ("lr = 0.1\n", "", "a run needs lr\n  where:  custom.toml, variant one, depth 2, init xav"),
        ("heads = 4", "haeds = 4", "custom.toml, [variants.'four']"),
        ("heads = 4", "heads = 0", "where:  custom.toml, [variants.'four'], heads=0"),
        (
            "where = { depth = 5, variant",
            "where = { layers = 5, variant",
            "'layers'\n  where:  custom.toml, [[set]] number 1",
        ),
        ("runs = 24", "runs = 25", "the grid has 24 runs, but the file states 25"),
        ("runs = 24", 'runs = "24"', "runs must be a valid integer"),
        ("runs = 24", "rnus = 24", "unknown table or field 'rnus'"),
        ("runs = 24", 'kind = "tabel"', "unknown kind 'tabel'"),
        ("runs = 24", 'compare = "width"', "unknown axis of the grid 'width'"),
        ("[grid]", "[gird]", "unknown table or field 'gird'"),
        (
            "ci = [1.5, 2.0]",
            "ci = [1.5]",
            "lists of 1 and 2 entries do not match\n  where:  custom.toml, [[published]]",
        ),
        ("accuracy = [70,", 'accuracy = ["70",', "accuracy must be a finite number, got '70'"),
        ('init = "xav"\n', 'init = "bal-x"\n', "unknown init 'bal-x'\n  where:  custom.toml, [[published]] number 1"),
        ('init = "xav"\n', "", "unknown init None\n  where:  custom.toml, [[published]] number 1"),
        ("depth = [2, 5]\naccuracy", "depth = [2, 2]\naccuracy", "published twice"),
        ("accuracy = ", "acuracy = ", "unknown field 'acuracy'"),
        ('say = "bal-o is better"', "", "a claim needs say"),
        ('worse = { init = "xav" }', "worse = { depth = 2 }", "both sides of a comparison must name the same axes"),
        ('worse = { init = "xav" }', 'worse = { init = "xva" }', "unknown init 'xva'"),
        ('worse = { init = "xav" }', "worse = { width = 2 }", "width is not an axis of the grid"),
        (
            "where = { depth = 5 }",
            "where = { depth = 7 }",
            "unknown depth 7\n  where:  custom.toml, [[claims]] number 1",
        ),
        ("where = { depth = 5 }", 'measure = "speed"', "unknown measure 'speed'"),
        ("where = { depth = 5 }", 'by = "much"', "by must be a valid number"),
        ("where = { depth = 5 }", "most = 1", "most must be a valid boolean"),
        ("where = { depth = 5 }", "where = 5", "where must be a valid table"),
        ("title = ", "title ", "not valid TOML"),
    ],
)
def test_error_names_file_table_and_field(old, new, message):
    assert old in CUSTOM
    with pytest.raises(SpecError) as error:
        parse_experiment(CUSTOM.replace(old, new, 1), "custom", "custom.toml")
    assert message in str(error.value)


def test_file_without_axes():
    with pytest.raises(SpecError, match="there is no grid of runs"):
        parse_experiment('title = "nothing"', "custom", "custom.toml")
    with pytest.raises(SpecError, match="nothing varies"):
        parse_experiment('[grid]\ndataset = "cora"\ndepth = 2\nlr = 0.1', "custom", "custom.toml")


def test_unknown_experiment_and_missing_file(tmp_path):
    with pytest.raises(ChoiceError, match=r"unknown experiment 'sdg'\n.*did you mean 'sgd'"):
        load_experiment("sdg")
    with pytest.raises(SpecError, match="cannot be read"):
        load_experiment(tmp_path / "absent.toml")


def test_subset():
    custom = parse_experiment(CUSTOM, "custom", "custom.toml")
    smaller = custom.subset(depth=[5], init=["xav"], seeds=2, epochs=7)
    assert {(spec.depth, spec.init, spec.seed, spec.epochs) for spec in smaller.specs} == {
        (5, "xav", 0, 7),
        (5, "xav", 1, 7),
    }
    assert len(smaller.specs) == 4
    assert [spec.seed for spec in custom.subset(seeds=5).cells[0].specs] == [0, 1, 2, 3, 4]
    assert custom.subset() == custom


def test_subset_of_variants():
    variations = load_experiment("variations-sgd")
    kept = variations.subset(variant=["none", "activation = ELU"])
    assert {spec.activation for spec in kept.specs} == {"relu", "elu"}
    assert len(kept.specs) == len(variations.specs) // 3


def test_subset_of_unknown_values():
    custom = parse_experiment(CUSTOM, "custom", "custom.toml")
    with pytest.raises(ChoiceError, match="unknown depth for custom 3"):
        custom.subset(depth=[3])
    lipschitz = load_experiment("lipschitz")
    assert {spec.kind for spec in lipschitz.subset(init=["bal-o"]).specs} == {"gatv2"}  # a setting that is not an axis
    with pytest.raises(ChoiceError, match="unknown variant for lipschitz 'Bal_X'"):
        lipschitz.subset(variant=["Bal_X"])
    with pytest.raises(SpecError, match="sgd has no variant"):
        load_experiment("sgd").subset(variant=["none"])
    with pytest.raises(EquipoiseError, match="unknown dataset for datasets 'texsa'"):
        load_experiment("datasets").subset(dataset=["texsa"])


def test_figure_is_named_in_the_file():
    assert parse_experiment(CUSTOM, "custom", "custom.toml").figure is None
    named = CUSTOM.replace("runs = 24", 'figure = "dynamics"')
    assert parse_experiment(named, "custom", "custom.toml").figure == "dynamics"
    drawn = CUSTOM.replace("runs = 24", 'draws = ["accuracy"]')
    assert parse_experiment(drawn, "custom", "custom.toml").figure == "accuracy"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[claims]]\nsay = 3", "say must be a valid string"),
        ("[[claims]]\nbetter = { init = [1, 2], depth = [1] }", "lists of 1 and 2 entries do not match"),
        ("[[claims]]\nsyay = 'x'", "unknown field 'syay'"),
        ("published = 3", "published must be a valid list"),
        ("[[published]]\nat = { init = 3 }", "at must be a text, a number, true or false"),
        ("[variants]\na = 3", "a must be a valid table"),
    ],
)
def test_wrong_types_are_named(text, message):
    with pytest.raises(SpecError) as error:
        parse_experiment(f"{text}\n[grid]\ninit = ['xav', 'bal-o']", "custom", "custom.toml")
    assert message in str(error.value)


def test_guide_lists_every_setting():
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "experiments.md").read_text()
    listed = guide[guide.index("Settings are the fields of") :].split(". ")[0]
    assert re.findall(r"`(\w+)`", listed) == [field.name for field in fields(RunSpec)]
