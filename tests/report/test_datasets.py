from equipoise.experiments.parser import load_experiment
from equipoise.report.datasets import dataset_report
from equipoise.report.formats import as_csv, as_markdown
from tests.real_data import require


def test_all_published_counts_are_reproduced():
    experiment = load_experiment("datasets")
    report = dataset_report(experiment, require(*experiment.axes["dataset"]))
    assert len(report.records) == 63
    assert [record for record in report.records if not record["equal"]] == []
    assert "| squirrel  | 5201 = 5201 " in as_markdown(report)
    assert "citeseer,val,500,500,true" in as_csv(report)


def test_differing_count_is_marked():
    experiment = load_experiment("datasets").subset(dataset=["cornell"])
    experiment.published["cornell",]["nodes"] = 184
    report = dataset_report(experiment, require("cornell"))
    assert report.rows[0][:3] == ["cornell", "183 ≠ 184", "277 = 277"]
    assert "6 of 7 numbers are equal" in report.status
