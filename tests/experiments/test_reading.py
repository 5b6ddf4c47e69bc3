from pathlib import Path

import pytest

from equipoise.errors import ChoiceError, EquipoiseError, SpecError
from equipoise.experiments.files import load
from equipoise.experiments.reading import parse

OWN = """
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


def test_lists_vary_and_the_rest_is_fixed():
    own = parse(OWN, "own", "own.toml")
    assert list(own.axes) == ["variant", "depth", "init"]
    assert len(own.cells) == 8
    assert {spec.epochs for spec in own.specs} == {20}
    rates = {cell.at: cell.specs[0].lr for cell in own.cells}
    assert {at for at, lr in rates.items() if lr == 0.05} == {("four", 5, "xav"), ("four", 5, "bal-o")}
    assert {(spec.heads, spec.width) for spec in own.specs} == {(1, 64), (4, 16)}
    assert [spec.seed for spec in own.cells[0].specs] == [0, 1, 2]
    assert own.published[("one", 5, "xav")] == {"accuracy": 60.5, "ci": 2.0}


def test_what_is_compared_varies_fastest():
    own = parse(OWN.replace("runs = 24", 'compare = "variant"'), "own", "own.toml")
    assert list(own.axes) == ["depth", "init", "variant"]
    assert own.at({"variant": "one", "init": "xav", "depth": 5}) in own.published


def test_a_file_of_ones_own_is_loaded_by_its_path(tmp_path):
    (tmp_path / "own.toml").write_text(OWN)
    own = load(tmp_path / "own.toml")
    assert (own.name, len(own.specs)) == ("own", 24)


def test_the_example_of_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    example = text.split("```toml\n")[1].split("```")[0]
    own = parse(example, "my", "my.toml")
    assert (len(own.specs), len(own.published), len(own.claims)) == (40, 2, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("depth = [2, 5]\ninit", "dpeth = [2, 5]\ninit", "unknown setting 'dpeth'\n  where:  own.toml, [grid]"),
        ('"bal-o"]', '"bal-oo"]', "unknown init 'bal-oo'\n  where:  own.toml, [grid]\n  remedy: did you mean 'bal-o'?"),
        ("depth = [2, 5]\ninit", "depth = [2, 0]\ninit", "where:  own.toml, [grid], depth=0"),
        ("depth = [2, 5]\ninit", "depth = [2, 2]\ninit", "depth needs values, each once"),
        ("lr = 0.1\n", "", "a run needs lr\n  where:  own.toml, variant one, depth 2, init xav"),
        ("heads = 4", "haeds = 4", "own.toml, [variants.'four']"),
        ("heads = 4", "heads = 0", "where:  own.toml, [variants.'four'], heads=0"),
        (
            "where = { depth = 5, variant",
            "where = { layers = 5, variant",
            "'layers'\n  where:  own.toml, [[set]] number 1",
        ),
        ("runs = 24", "runs = 25", "the grid makes 24 runs, and the file says 25"),
        ("runs = 24", 'runs = "24"', "runs must be a whole number"),
        ("runs = 24", "rnus = 24", "unknown table or field 'rnus'"),
        ("runs = 24", 'kind = "tabel"', "unknown kind 'tabel'"),
        ("runs = 24", 'compare = "width"', "unknown axis of the grid 'width'"),
        ("[grid]", "[gird]", "unknown table or field 'gird'"),
        (
            "ci = [1.5, 2.0]",
            "ci = [1.5]",
            "lists of 1 and 2 entries do not go together\n  where:  own.toml, [[published]]",
        ),
        ("accuracy = [70,", 'accuracy = ["70",', "accuracy must be a number, got '70'"),
        ('init = "xav"\n', 'init = "bal-x"\n', "unknown init 'bal-x'\n  where:  own.toml, [[published]] number 1"),
        ('init = "xav"\n', "", "unknown init None\n  where:  own.toml, [[published]] number 1"),
        ("depth = [2, 5]\naccuracy", "depth = [2, 2]\naccuracy", "published twice"),
        ("accuracy = ", "acuracy = ", "unknown field 'acuracy'"),
        ('say = "bal-o is better"', "", "a claim needs say"),
        ('worse = { init = "xav" }', "worse = { depth = 2 }", "both sides of a comparison must name the same axes"),
        ('worse = { init = "xav" }', 'worse = { init = "xva" }', "unknown init 'xva'"),
        ('worse = { init = "xav" }', "worse = { width = 2 }", "width is not an axis of the grid"),
        ("where = { depth = 5 }", "where = { depth = 7 }", "unknown depth 7\n  where:  own.toml, [[claims]] number 1"),
        ("where = { depth = 5 }", 'measure = "speed"', "unknown measure 'speed'"),
        ("where = { depth = 5 }", 'by = "much"', "by must be a number"),
        ("where = { depth = 5 }", "most = 1", "most must be true or false"),
        ("where = { depth = 5 }", "where = 5", "where must be a table"),
        ("title = ", "title ", "not valid TOML"),
    ],
)
def test_a_mistake_is_told_with_file_table_and_field(old, new, message):
    assert old in OWN
    with pytest.raises(SpecError) as error:
        parse(OWN.replace(old, new, 1), "own", "own.toml")
    assert message in str(error.value)


def test_a_file_without_a_grid():
    with pytest.raises(SpecError, match="there is no grid of runs"):
        parse('title = "nothing"', "own", "own.toml")
    with pytest.raises(SpecError, match="nothing varies"):
        parse('[grid]\ndataset = "cora"\ndepth = 2\nlr = 0.1', "own", "own.toml")


def test_unknown_names_and_files(tmp_path):
    with pytest.raises(ChoiceError, match="did you mean 'sgd'"):
        load("sdg")
    with pytest.raises(SpecError, match="cannot be read"):
        load(tmp_path / "absent.toml")


def test_narrowed():
    own = parse(OWN, "own", "own.toml")
    less = own.narrowed(depth=[5], init=["xav"], seeds=2, epochs=7)
    assert {(spec.depth, spec.init, spec.seed, spec.epochs) for spec in less.specs} == {
        (5, "xav", 0, 7),
        (5, "xav", 1, 7),
    }
    assert len(less.specs) == 4
    assert [spec.seed for spec in own.narrowed(seeds=5).cells[0].specs] == [0, 1, 2, 3, 4]
    assert own.narrowed() == own


def test_narrowing_to_what_is_not_there():
    own = parse(OWN, "own", "own.toml")
    with pytest.raises(ChoiceError, match="unknown depth for own 3"):
        own.narrowed(depth=[3])
    lipschitz = load("lipschitz")
    assert {spec.kind for spec in lipschitz.narrowed(init=["bal-o"]).specs} == {"gatv2"}  # not an axis, a setting
    with pytest.raises(EquipoiseError, match="unknown dataset for datasets 'texsa'"):
        load("datasets").narrowed(dataset=["texsa"])
