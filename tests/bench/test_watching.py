import json

from equipoise.bench.cases import Case
from equipoise.bench.report import Report, from_dict
from equipoise.bench.table import grids
from equipoise.bench.watching import watching
from equipoise.train.recorder import GROUPS

TINY = Case("tiny", layers=3, dataset="synthetic-citation", width=8, rounds=1, epochs=2)


def test_everything_and_each_group_is_measured_and_told():
    found = watching(TINY)
    assert list(found.records) == list(found.epochs) == ["everything", *GROUPS]
    assert all(epoch > 0 for epoch in found.epochs.values())
    report = Report(watching=found)
    assert from_dict(json.loads(json.dumps(report.to_dict()))) == report
    table, goals = grids(report)
    assert [row[0] for row in table.rows] == ["everything", *GROUPS]
    assert len(goals.rows) == 2


def test_reports_from_before_can_be_read():
    plain = Report().to_dict()
    del plain["watching"]
    assert from_dict(plain).watching is None
