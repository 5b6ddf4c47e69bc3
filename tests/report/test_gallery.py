from dataclasses import replace

import pytest

from equipoise.errors import SpecError
from equipoise.experiments.files import load, targets
from equipoise.experiments.reading import parse
from equipoise.experiments.result import failed
from equipoise.experiments.store import Store
from equipoise.report.frames import by_layer, frames_of
from equipoise.report.gallery import DRAWINGS, check_drawn, draw, is_drawn
from tests.report.recorded import DYNAMICS, fill, in_small
from tests.report.runs import COMPLETE, SMALL, results, runs_of

RESULTS = ("cora-widths", "adam", "inits", "omega-gat")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("gallery") / "runs.sqlite") as opened:
        fill(opened, *map(in_small, DYNAMICS))
        yield opened


def test_every_figure_of_the_paper_has_its_drawing():
    assert set(DRAWINGS) == {name for name in targets() if load(name).kind == "figure"} == {*DYNAMICS, *RESULTS}


@pytest.mark.parametrize("name", DYNAMICS)
def test_dynamics_from_the_store(store, name):
    experiment = in_small(name)
    figure = draw(experiment, store.results(), frames_of(store))
    caption = figure.get_supxlabel()
    assert "data set synthetic-citation" in caption
    assert "at most 3 epochs" in caption
    assert f"runs {len(experiment.cells)} of {len(experiment.cells)}" in " ".join(caption.split())
    assert "missing" not in caption
    assert any(ax.lines or ax.patches for ax in figure.axes)


def test_each_panel_shows_its_own_run(store):
    figure = draw(in_small("dynamics-10"), store.results(), frames_of(store))
    for ax, cell in zip(figure.axes[1:3], in_small("dynamics-10").cells, strict=True):
        table = by_layer(frames_of(store)(cell.specs[0].key), "gradient/features")
        assert [line.get_ydata().tolist() for line in ax.get_lines()] == table.T.to_numpy().tolist()
    titles = [ax.get_title() for ax in figure.axes]
    assert "0.5" in titles[0]
    assert "0.05" in draw(in_small("dynamics-5"), store.results(), frames_of(store)).axes[0].get_title()
    conservation = draw(in_small("conservation"), store.results(), frames_of(store))
    titles = [ax.get_title() for ax in conservation.axes if ax.get_title()]
    assert titles == [r"$\delta$ with GD", r"$\delta$ with Adam", "$c$ with Xav.", "$c$ with LLortho+Bal"]


def test_what_is_missing_is_said(store):
    experiment = in_small("zero-change")
    there = store.results()
    gone, broken = experiment.cells[1], experiment.cells[6]
    del there[gone.specs[0].key]
    there[broken.specs[0].key] = failed(broken.specs[0], "no memory")
    caption = " ".join(draw(experiment, there, frames_of(store)).get_supxlabel().split())
    assert "runs 10 of 12" in caption
    assert "missing L=5 xav-z; L=10 bal-x" in caption
    with pytest.raises(SpecError, match=r"no run of zero-change(.|\n)*equipoise reproduce zero-change --figure"):
        draw(experiment, {}, frames_of(store))
    with pytest.raises(SpecError, match="none of them was recorded"):
        draw(experiment, store.results(), lambda key: None)


@pytest.mark.parametrize("name", RESULTS)
def test_accuracy_against_depth(name):
    experiment = load(name)
    made = [run for cell in experiment.cells[1:] for run in runs_of(cell, [50, 60, 70])]
    figure = draw(experiment, {run.key: run for run in made}, lambda key: None)
    caption = " ".join(figure.get_supxlabel().split())
    assert f"runs {len(made)} of {len(experiment.specs)}" in caption
    assert "missing" in caption
    panels = {"cora-widths": 4, "adam": 3, "inits": 1, "omega-gat": 1}[name]
    assert len([ax for ax in figure.axes if ax.get_xlabel()]) == 2 * panels
    drawn = figure.axes[0].containers[-1][0].get_ydata()
    assert set(drawn) == {60.0}


def test_many_missing_cells_are_counted():
    experiment = load("inits")
    made = runs_of(experiment.cells[0], [50])
    caption = " ".join(draw(experiment, {run.key: run for run in made}, lambda key: None).get_supxlabel().split())
    assert f"and {len(experiment.cells) - 1 - 6} more" in caption


def test_ones_own_figure():
    own = parse(f'draws = ["accuracy"]\n{SMALL}', "own", "own.toml")
    figure = draw(own, {run.key: run for run in results(own, COMPLETE)}, lambda key: None)
    assert [ax.get_title() for ax in figure.axes] == ["dataset cora", "dataset texas"]
    assert figure.axes[0].get_ylabel() == "test accuracy (%)"


def test_what_is_not_drawn_is_said():
    assert not is_drawn(load("sgd"))
    assert not is_drawn(replace(load("dynamics-5"), name="own"))
    with pytest.raises(SpecError, match=r"no figure of sgd(.|\n)*one of: cora-widths"):
        check_drawn(load("sgd"))
