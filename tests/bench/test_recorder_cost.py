import json

from equipoise.bench.cases import Case
from equipoise.bench.recorder_cost import measure_recorder_cost
from equipoise.bench.report import BenchReport, report_tables
from equipoise.training.recorder import GROUPS

TINY = Case("tiny", layers=3, dataset="synthetic-citation", width=8, rounds=1, epochs=2)


def test_all_quantities_and_each_group_are_measured_and_tabulated():
    cost = measure_recorder_cost(TINY)
    assert list(cost.records) == list(cost.epochs) == ["everything", *GROUPS]
    assert all(epoch > 0 for epoch in cost.epochs.values())
    report = BenchReport(recorder=cost)
    assert BenchReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    (table,) = report_tables(report)
    assert [row[0] for row in table.rows] == ["everything", *GROUPS]
