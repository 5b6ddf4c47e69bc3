import json

import numpy as np
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data.catalog import dataset_info
from equipoise.errors import EquipoiseError


def run(*arguments):
    return CliRunner().invoke(app, ["partition", *map(str, arguments)])


def test_prints_an_overview_and_writes_parts(tmp_path):
    result = run("synthetic-citation", "--parts", 3, "--out", tmp_path / "parts", "--method", "blocks", "--width", 32)
    assert result.exit_code == 0
    lines = dict(line.split(None, 1) for line in result.stdout.splitlines() if line)
    part = eq.load_part(tmp_path / "parts", rank=2)
    nodes, edges, receives, sends = (int(column.replace(",", "")) for column in lines["2"].split())
    assert (nodes, edges) == (len(part.own), part.edge_index.size(1))
    assert (receives, sends) == (len(part.halo), sum(map(len, part.send)))
    assert lines["graph"] == "synthetic-citation: 1,750 nodes, 6,948 edges"
    assert lines["method"] == "blocks"
    assert "(width 32, float32, all parts)" in lines["exchange"]


def test_json(tmp_path):
    result = run("synthetic-citation", "--parts", 2, "--out", tmp_path / "parts", "--json", "--method", "blocks")
    summary = json.loads(result.stdout)
    halos = [len(eq.load_part(tmp_path / "parts", rank).halo) for rank in range(2)]
    assert [rank["receive"] for rank in summary["ranks"]] == halos
    assert summary["exchange_bytes"] == sum(halos) * 64 * 4
    assert summary["edges"] == sum(rank["edges"] for rank in summary["ranks"]) == 6948


def test_a_folder_of_arrays(tmp_path):
    (tmp_path / "graph").mkdir()
    np.save(tmp_path / "graph" / "x.npy", np.eye(4, dtype=np.float32))
    np.save(tmp_path / "graph" / "edge_index.npy", np.array([[0, 1, 2], [1, 2, 3]]))
    assert run(tmp_path / "graph", "--parts", 2, "--out", tmp_path / "parts").exit_code == 0
    assert eq.load_part(tmp_path / "parts", 0).manifest.name == "graph"


def test_force_replaces_a_partition(tmp_path):
    arguments = ("synthetic-citation", "--out", tmp_path / "parts", "--method", "blocks")
    assert run(*arguments, "--parts", 2).exit_code == 0
    again = run(*arguments, "--parts", 3)
    assert isinstance(again.exception, EquipoiseError)
    assert "is not empty" in str(again.exception)
    assert run(*arguments, "--parts", 3, "--force").exit_code == 0
    assert eq.load_part(tmp_path / "parts", 2).parts == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("coar", "--parts", 2), "did you mean 'cora'"),
        (("./nowhere", "--parts", 2), "there is no folder nowhere"),
        (("/proc", "--parts", 2), "the graph has no x"),
        (("synthetic-citation", "--parts", 0), "0 parts are not possible"),
        (("synthetic-citation", "--parts", 2, "--method", "blok"), "did you mean 'blocks'"),
    ],
)
def test_errors_name_the_mistake(arguments, message, tmp_path):
    result = run(*arguments, "--out", tmp_path / "parts")
    assert isinstance(result.exception, EquipoiseError)
    assert message in str(result.exception)
    assert not (tmp_path / "parts").exists()


def test_training_converts_features_and_uses_the_metric_of_the_data_set(tmp_path):
    nodes, rng = dataset_info("minesweeper").nodes, np.random.default_rng(0)
    arrays = {"x": rng.random((nodes, 2)), "y": rng.integers(0, 2, (nodes, 1))}  # features in float64
    arrays["edge_index"] = rng.integers(0, nodes, (2, 2 * nodes))
    split = rng.integers(0, 3, nodes)
    arrays |= {f"{name}_mask": split == index for index, name in enumerate(("train", "val", "test"))}
    (tmp_path / "minesweeper").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "minesweeper" / f"{name}.npy", array)
    assert run(tmp_path / "minesweeper", "--parts", 1, "--out", tmp_path / "parts").exit_code == 0
    options = ("--layers", "2", "--width", "4", "--epochs", "2", "--json")
    result = CliRunner().invoke(app, ["train", "--parts", str(tmp_path / "parts"), *options])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["metric"] == "roc_auc"
