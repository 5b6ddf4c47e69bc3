from dataclasses import replace

import numpy as np
import pytest

from equipoise.errors import SpecError
from equipoise.experiments.parser import experiment_names, load_experiment, parse_experiment
from equipoise.experiments.result import failed_result
from equipoise.experiments.store import Store
from equipoise.report.figures import FIGURES, check_figure, draw_figure, has_figure
from equipoise.report.frames import frame_loader, layer_table
from tests.report.recordings import DYNAMICS, run_experiments, shrink_experiment
from tests.report.runs import COMPLETE, SMALL, cell_results, make_results

ACCURACY = ("cora-widths", "adam", "inits", "omega-gat")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("figures") / "runs.sqlite") as opened:
        run_experiments(opened, *map(shrink_experiment, DYNAMICS))
        yield opened


def draw_without_recordings(experiment, results):
    return draw_figure(experiment, {result.key: result for result in results}, lambda key: None)


def caption_of(figure):
    return " ".join(figure.get_supxlabel().split())


def test_every_figure_of_the_paper_is_registered():
    figures = {name: load_experiment(name) for name in experiment_names() if load_experiment(name).kind == "figure"}
    assert set(figures) == {*DYNAMICS, *ACCURACY}
    assert {experiment.figure for experiment in figures.values()} == set(FIGURES)


@pytest.mark.parametrize("name", DYNAMICS)
def test_dynamics_from_the_store(store, name):
    experiment = shrink_experiment(name)
    figure = draw_figure(experiment, store.results(), frame_loader(store))
    caption = caption_of(figure)
    assert "data set synthetic-citation" in caption
    assert "at most 3 epochs" in caption
    assert f"runs {len(experiment.cells)} of {len(experiment.cells)}" in caption
    assert "missing" not in caption
    assert any(ax.lines or ax.patches for ax in figure.axes)


def test_each_panel_shows_its_own_run(store):
    experiment = shrink_experiment("dynamics-10")
    figure = draw_figure(experiment, store.results(), frame_loader(store))
    for ax, cell in zip(figure.axes[1:3], experiment.cells, strict=True):
        table = layer_table(frame_loader(store)(cell.specs[0].key), "gradient/features")
        assert [line.get_ydata().tolist() for line in ax.get_lines()] == table.T.to_numpy().tolist()


def test_conservation_panels_are_titled_by_optimizer_and_scheme(store):
    figure = draw_figure(shrink_experiment("conservation"), store.results(), frame_loader(store))
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == [r"$\delta$ with GD", r"$\delta$ with Adam", "$c$ with xav", "$c$ with bal-o"]


@pytest.mark.parametrize(("name", "threshold"), [("dynamics-5", "0.05"), ("dynamics-10", "0.5")])
def test_threshold_of_change_depends_on_depth(store, name, threshold):
    figure = draw_figure(shrink_experiment(name), store.results(), frame_loader(store))
    assert figure.axes[0].get_title().endswith(f"> {threshold}")


def test_missing_runs_are_listed_in_the_caption(store):
    experiment = shrink_experiment("zero-change")
    results = store.results()
    missing, failed = experiment.cells[1], experiment.cells[6]
    del results[missing.specs[0].key]
    results[failed.specs[0].key] = failed_result(failed.specs[0], "no memory")
    caption = caption_of(draw_figure(experiment, results, frame_loader(store)))
    assert "runs 10 of 12" in caption
    assert "missing L=5 xav-z; L=10 bal-x" in caption


def test_without_recordings_the_error_names_the_command(store):
    experiment = shrink_experiment("zero-change")
    message = r"no run of zero-change in the store has a recording(.|\n)*equipoise reproduce zero-change --figure"
    with pytest.raises(SpecError, match=message):
        draw_figure(experiment, {}, frame_loader(store))
    with pytest.raises(SpecError, match=message):
        draw_figure(experiment, store.results(), lambda key: None)


@pytest.mark.parametrize(("name", "panels"), [*zip(ACCURACY, (4, 3, 1, 1), strict=True)])
def test_accuracy_against_depth(name, panels):
    experiment = load_experiment(name)
    results = [result for cell in experiment.cells[1:] for result in cell_results(cell, [50, 60, 70])]
    figure = draw_without_recordings(experiment, results)
    assert f"runs {len(results)} of {len(experiment.specs)}" in caption_of(figure)
    assert "missing" in caption_of(figure)
    assert len([ax for ax in figure.axes if ax.get_xlabel()]) == 2 * panels
    ours = [lines[0] for lines in figure.axes[0].containers if lines[0].get_markerfacecolor() != "none"]
    assert set(ours[-1].get_ydata()) == {60.0}


def test_published_cells_are_drawn_next_to_ours():
    experiment = load_experiment("sgd").subset(dataset=["texas"], init=["bal-o"])
    results = [result for cell in experiment.cells for result in cell_results(cell, [50, 60])]
    (ax,) = draw_without_recordings(experiment, results).axes
    _, paper = (lines[0] for lines in ax.containers)
    expected = [experiment.published["texas", depth, "bal-o"]["accuracy"] for depth in (2, 5, 10, 20, 40)]
    assert paper.get_ydata().tolist() == expected


def test_published_cells_without_runs_are_drawn_in_panels_that_have_runs():
    experiment = load_experiment("sgd").subset(dataset=["texas", "squirrel"], init=["bal-o"])
    texas = [cell for cell in experiment.cells if cell.coordinates[0] == "texas"]
    (ax,) = draw_without_recordings(experiment, cell_results(texas[1], [50, 60])).axes
    ours, paper = (lines[0].get_ydata() for lines in ax.containers)
    assert np.isnan(np.array(ours, float)).tolist() == [True, False, True, True, True]
    assert paper.tolist() == [experiment.published["texas", depth, "bal-o"]["accuracy"] for depth in (2, 5, 10, 20, 40)]


@pytest.mark.parametrize(
    ("datasets", "depths", "rates"),
    [
        (["cora"], [2, 5, 10, 20, 40], "SGD 0.1 (L = 2, 5), 0.05 (L = 10, 20), 0.005 (L = 40),"),
        (["cora"], [2, 5], "SGD 0.1,"),
        (["cora", "texas"], [2, 10, 40], "SGD 0.0005 to 0.1,"),
    ],
)
def test_caption_has_the_learning_rates(datasets, depths, rates):
    experiment = load_experiment("sgd").subset(dataset=datasets, depth=depths, init=["bal-o"])
    results = [result for cell in experiment.cells for result in cell_results(cell, [50, 60])]
    assert rates in " ".join(caption_of(draw_without_recordings(experiment, results)).split())


def test_many_missing_cells_are_counted():
    experiment = load_experiment("inits")
    figure = draw_without_recordings(experiment, cell_results(experiment.cells[0], [50]))
    assert f"and {len(experiment.cells) - 1 - 6} more" in caption_of(figure)


@pytest.mark.parametrize("key", ["", 'figure = "accuracy"\n'])
def test_own_experiment_over_depth_is_drawn_with_and_without_the_figure_key(key):
    own = parse_experiment(f'{key}draws = ["accuracy"]\n{SMALL}', "own", "own.toml")
    figure = draw_without_recordings(own, make_results(own, COMPLETE))
    assert [ax.get_title() for ax in figure.axes] == ["cora", "texas"]
    assert figure.axes[0].get_ylabel() == "test accuracy (%)"


def test_figure_is_found_by_key_not_by_experiment_name(store):
    own = replace(shrink_experiment("relative-gradients"), name="own")
    assert has_figure(own)
    assert len(draw_figure(own, store.results(), frame_loader(store)).axes) == 8
    assert not has_figure(replace(own, name="dynamics-5", figure=None))


def test_experiment_without_a_figure_is_rejected():
    assert not has_figure(load_experiment("gat-v1"))
    with pytest.raises(SpecError, match=r"no figure of gat-v1(.|\n)*one of: accuracy, conservation"):
        check_figure(load_experiment("gat-v1"))


def test_unknown_figure_is_rejected():
    with pytest.raises(SpecError, match=r"unknown figure 'pie'(.|\n)*one of: accuracy"):
        check_figure(replace(load_experiment("sgd"), figure="pie"))


def test_accuracy_needs_depth_and_init():
    with pytest.raises(SpecError, match="needs several depths and schemes"):
        check_figure(replace(load_experiment("conservation"), figure="accuracy"))


@pytest.mark.parametrize("figure", ["dynamics", "zero-change"])
def test_runs_that_differ_in_other_settings_are_rejected(figure):
    with pytest.raises(SpecError, match=f"the runs of a '{figure}' figure may differ only in"):
        draw_without_recordings(replace(load_experiment("sgd"), figure=figure), [])
