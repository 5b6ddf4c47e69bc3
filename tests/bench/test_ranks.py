import json

import pytest

from equipoise.bench.cases import Case
from equipoise.bench.ranks import RankRun, measure_rank, measure_ranks, write_parts
from equipoise.bench.report import BenchReport, report_tables

SMALL = Case("small-ranks", layers=3, nodes=400, edges=1600, features=8, width=8, rounds=1, epochs=1)


def test_one_rank_in_this_process(tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    write_parts(tmp_path, SMALL, 1)
    result = measure_rank(tmp_path, SMALL)
    assert result["rank"] == result["bytes_sent"] == 0
    assert result["milliseconds"] > 0


def test_table_compares_with_one_rank():
    runs = [RankRun("case", 1, 10.0, [2**20], 0), RankRun("case", 2, 5.0, [2**19, 2**18], 2**21)]
    report = BenchReport(ranks=runs)
    (table,) = report_tables(report)
    assert [row[1:] for row in table.rows] == [
        ("1", "10.0", "1.00 ×", "1", "1.00", "0.00"),
        ("2", "5.00", "2.00 ×", "0", "0.50", "2.00"),
    ]
    assert BenchReport.from_dict(json.loads(json.dumps(report.to_dict()))).ranks == runs


@pytest.mark.slow
def test_two_ranks_exchange_the_bytes_of_the_cost_model(tmp_path):
    run = measure_ranks(SMALL, 2)
    write_parts(tmp_path, SMALL, 2)
    manifest = json.loads((tmp_path / "parts" / "manifest.json").read_text())
    rows = sum(sum(record["receive"]) for record in manifest["ranks"])
    widths = [8, 8, 40]  # of the transformed rows: all layers but the last have the hidden width
    assert run.bytes_sent == 2 * 4 * rows * sum(widths)
    assert len(run.peaks) == 2
