import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from equipoise.experiments.result import failed_result
from equipoise.report.summary import Estimate, estimate, group_by_scheme, match_epochs, summarize
from tests.report.runs import COMPLETE, cell_results, make_results, small_experiment


def test_interval_is_students():
    values = [79.1, 78.4, 80.2, 79.9, 77.0]
    result = estimate(values)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert result.mean == pytest.approx(np.mean(values))
    assert result.ci == pytest.approx((high - low) / 2)
    assert result.n == 5


def test_interval_of_two_runs_has_one_degree_of_freedom():
    assert estimate([1.0, 3.0]).ci == pytest.approx(12.7062, rel=1e-5)


def test_one_value_has_no_interval_and_no_values_no_estimate():
    assert math.isnan(estimate([3.0]).ci)
    assert estimate([3.0]).text(1) == "3.0"
    assert estimate([]) is None
    assert estimate([2.0, 2.0]) == Estimate(2.0, 0.0, 2)


def test_cell_summary_is_in_percent():
    experiment = small_experiment()
    summary = summarize(experiment, make_results(experiment, COMPLETE))["cora", 10, "xav"]
    assert summary.accuracy.mean == pytest.approx(25.0)
    assert summary.epochs == Estimate(300.0, 0.0, 2)
    assert (summary.n, summary.expected, summary.failed) == (2, 2, 0)


def test_diverged_runs_count_and_failed_runs_do_not():
    experiment = small_experiment()
    first, second = experiment.cells[:2]
    never_evaluated = cell_results(second, [0], outcome="diverged")
    results = [
        *cell_results(first, [40], epochs=7, outcome="diverged"),
        failed_result(first.specs[1], "no memory"),
        *(replace(result, test_accuracy=None, best_epoch=None) for result in never_evaluated),
    ]
    summaries = summarize(experiment, results)
    summary = summaries[first.coordinates]
    assert summary.accuracy.mean == pytest.approx(40)
    assert summary.epochs.mean == 7
    assert (summary.n, summary.diverged, summary.failed) == (1, 1, 1)
    assert (summaries[second.coordinates].accuracy, summaries[second.coordinates].failed) == (None, 1)


def test_results_of_other_runs_are_ignored():
    experiment = small_experiment()
    others = [replace(one, spec=replace(one.spec, width=32)) for one in make_results(experiment, COMPLETE)]
    assert all(summary.n == 0 for summary in summarize(experiment, others).values())


def test_match_epochs_uses_the_epochs_of_the_runs():
    experiment = small_experiment()
    short = [replace(one, spec=replace(one.spec, epochs=200)) for one in make_results(experiment, COMPLETE)]
    matched = match_epochs(experiment, short)
    assert {spec.epochs for spec in matched.specs} == {200}
    assert "200" in matched.remark
    assert "5000" in matched.remark
    full = make_results(experiment, {("cora", 2, "xav"): ([70], 1)})
    assert match_epochs(experiment, [*short, *full]) == experiment
    assert match_epochs(experiment, [*short, *full], 200) == matched
    assert match_epochs(experiment, []) == experiment


def test_group_by_scheme():
    specs = small_experiment().specs
    groups = group_by_scheme(specs)
    assert [(specs[0].dataset, specs[0].depth) for specs in (group["xav"] for group in groups)] == [
        ("cora", 2),
        ("cora", 10),
        ("texas", 2),
        ("texas", 10),
    ]
    assert all([spec.seed for spec in group["bal-o"]] == [0, 1] for group in groups)
    split = group_by_scheme(specs, split_seeds=True)
    assert len(split) == 8
    assert all(len(runs) == 1 for group in split for runs in group.values())
