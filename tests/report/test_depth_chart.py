from equipoise.experiments.parser import load_experiment
from equipoise.report.depth_chart import BOTTOM, LEFT, RIGHT, TOP, depth_panels
from equipoise.report.summary import summarize, table_rows
from tests.report.runs import COMPLETE, make_results, small_experiment


def panels(numbers, experiment=None):
    experiment = experiment or small_experiment()
    return depth_panels(experiment, table_rows(experiment, summarize(experiment, make_results(experiment, numbers))))


def test_one_panel_per_data_set_with_ours_and_the_paper():
    cora, texas = panels(COMPLETE)
    assert (cora.title, texas.title) == ("cora", "texas")
    assert [series.scheme for series in cora.series] == ["xav", "bal-o"]
    assert [len(series.ours) for series in cora.series] == [2, 2]
    assert [[mark.label for mark in series.paper] for series in cora.series] == [
        ["xav, L = 10: paper 25.5 ± 18.1"],
        ["bal-o, L = 10: paper 79.4 ± 1.3"],
    ]
    assert cora.series[1].ours[1].label == "bal-o, L = 10: ours 79.0 ± 1.3, 2 runs"


def test_higher_accuracy_is_higher_and_everything_is_inside():
    cora, _ = panels(COMPLETE)
    xav, bal_o = cora.series
    assert bal_o.ours[1].y < xav.ours[1].y
    marks = [mark for panel in panels(COMPLETE) for series in panel.series for mark in (*series.ours, *series.paper)]
    assert all(LEFT <= mark.x <= RIGHT and TOP <= mark.high <= mark.y <= mark.low <= BOTTOM for mark in marks)


def test_a_line_marks_the_score_of_a_constant_prediction():
    cora, texas = panels(COMPLETE)
    assert (cora.constant[1], texas.constant[1]) == ("a constant prediction: 31.9", "a constant prediction: 59.5")
    assert TOP <= texas.constant[0] < cora.constant[0] <= BOTTOM


def test_the_line_is_inside_a_panel_whose_cells_are_all_below_it():
    low = {at: ([20, 21], 200) for at in COMPLETE if at[0] == "texas"}
    (texas,) = panels(low, small_experiment().subset(dataset=["texas"]))
    assert texas.constant[0] >= TOP


def test_panels_with_our_runs_come_first():
    texas_only = {at: numbers for at, numbers in COMPLETE.items() if at[0] == "texas"}
    assert [(panel.title, panel.has_runs, panel.has_published) for panel in panels(texas_only)] == [
        ("texas", True, False),
        ("cora", False, True),
    ]


def test_no_chart_without_runs_or_depths():
    assert panels({}) == []
    assert panels({}, load_experiment("conservation")) == []
