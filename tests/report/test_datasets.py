from equipoise.experiments.files import load
from equipoise.report.datasets import dataset_report
from equipoise.report.formats import as_csv, as_markdown
from tests.real_data import require


def test_every_number_of_the_table_is_reproduced():
    experiment = load("datasets")
    made = dataset_report(experiment, require(*experiment.axes["dataset"]))
    assert len(made.records) == 63
    assert [record for record in made.records if not record["equal"]] == []
    assert "| squirrel  | 5201 = 5201 " in as_markdown(made)
    assert "citeseer,val,500,500,true" in as_csv(made)


def test_a_difference_is_shown():
    experiment = load("datasets").narrowed(dataset=["cornell"])
    experiment.published["cornell",]["nodes"] = 184
    made = dataset_report(experiment, require("cornell"))
    assert made.rows[0][:3] == ["cornell", "183 ≠ 184", "277 = 277"]
    assert "6 of 7 numbers are equal" in made.status
