import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from equipoise.experiments.result import failed
from equipoise.report.summary import Estimate, estimate, fitting, summarize
from tests.report.runs import COMPLETE, results, runs_of, small


def test_the_interval_is_students():
    values = [79.1, 78.4, 80.2, 79.9, 77.0]
    found = estimate(values)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert found.mean == pytest.approx(np.mean(values))
    assert found.ci == pytest.approx((high - low) / 2)
    assert found.n == 5


def test_two_runs_have_the_factor_of_one_degree_of_freedom():
    assert estimate([1.0, 3.0]).ci == pytest.approx(12.7062, rel=1e-5)


def test_one_value_has_no_interval_and_none_no_estimate():
    assert math.isnan(estimate([3.0]).ci)
    assert estimate([3.0]).text(1) == "3.0"
    assert estimate([]) is None
    assert estimate([2.0, 2.0]) == Estimate(2.0, 0.0, 2)


def test_cells_are_in_percent_with_their_epochs():
    experiment = small()
    cell = summarize(experiment, results(experiment, COMPLETE))["cora", 10, "xav"]
    assert cell.accuracy.mean == pytest.approx(25.0)
    assert cell.epochs == Estimate(300.0, 0.0, 2)
    assert (cell.n, cell.wanted, cell.failed) == (2, 2, 0)


def test_a_diverged_run_counts_as_what_it_reached_and_a_failed_one_does_not():
    experiment = small()
    first, second = experiment.cells[:2]
    runs = [
        *runs_of(first, [40], epochs=7, outcome="diverged"),
        failed(first.specs[1], "no memory"),
        *(replace(run, test_accuracy=None, best_epoch=None) for run in runs_of(second, [0], outcome="diverged")),
    ]
    found = summarize(experiment, runs)
    assert found[first.at].accuracy.mean == pytest.approx(40)
    assert found[first.at].epochs.mean == 7
    assert (found[first.at].n, found[first.at].diverged, found[first.at].failed) == (1, 1, 1)
    assert (found[second.at].accuracy, found[second.at].failed) == (None, 1)


def test_runs_of_something_else_are_passed_over():
    experiment = small()
    others = [replace(run, spec=replace(run.spec, width=32)) for run in results(experiment, COMPLETE)]
    assert all(summary.n == 0 for summary in summarize(experiment, others).values())


def test_runs_of_fewer_epochs_are_found_and_said_to_be():
    experiment = small()
    short = [replace(run, spec=replace(run.spec, epochs=200)) for run in results(experiment, COMPLETE)]
    fitted = fitting(experiment, short)
    assert {spec.epochs for spec in fitted.specs} == {200}
    assert fitted.remark == "of at most 200 epochs instead of 5000"
    whole = results(experiment, {("cora", 2, "xav"): ([70], 1)})
    assert fitting(experiment, [*short, *whole]) == experiment
    assert fitting(experiment, [*short, *whole], 200) == fitted
    assert fitting(experiment, []) == experiment
