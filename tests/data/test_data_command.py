from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise.commands.data import app
from equipoise.data import catalog
from equipoise.data.catalog import CATALOG, DatasetInfo
from equipoise.errors import ChoiceError

runner = CliRunner()


@pytest.fixture
def tiny(server: Any, monkeypatch: pytest.MonkeyPatch) -> DatasetInfo:
    """A catalogue with one data set, which the local server offers."""
    info: DatasetInfo = server.offer_dataset()
    monkeypatch.setattr(catalog, "CATALOG", {"tiny": info})
    return info


@pytest.mark.parametrize("command", ["list", "fetch", "verify"])
def test_help_has_an_example(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example:  equipoise data {command}" in result.stdout


def test_list_shows_sizes_and_availability(cache: Path) -> None:
    lines = runner.invoke(app, ["list"]).stdout.splitlines()
    rows = {line.split()[0]: line for line in lines[1:15]}
    assert list(rows) == list(CATALOG)
    assert rows["citeseer"].split()[1:] == ["3327", "9104", "3703", "6", "120/494/988", "missing"]
    assert lines[-2] == "metric: accuracy; ROC AUC for minesweeper, tolokers"
    assert rows["synthetic-citation"].endswith("built in")
    assert lines[-1] == f"files are read from {cache}"


def test_list_finds_the_real_data_sets(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(real_data))
    shown = runner.invoke(app, ["list"]).stdout
    assert shown.count(" available") == 13
    assert "missing" not in shown
    listed = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert [row["folder"] for row in listed] == [str(real_data)] * 13 + [None]


def test_list_as_json() -> None:
    listed = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert [row["name"] for row in listed] == list(CATALOG)
    assert listed[0] == {
        "name": "cora",
        "title": "Cora",
        "nodes": 2708,
        "edges": 10556,
        "features": 1433,
        "classes": 7,
        "split": {"train": 140, "val": 500, "test": 1000},
        "metric": "accuracy",
        "available": False,
        "folder": None,
    }
    assert listed[-1]["available"] is True


def test_fetch_downloads_missing_files(server: Any, tiny: DatasetInfo, cache: Path) -> None:
    first = runner.invoke(app, ["fetch"])
    assert (first.exit_code, first.stdout) == (0, f"tiny: fetched 2 of 2 files into {cache}\n")
    second = runner.invoke(app, ["fetch", "TINY"])
    assert (second.exit_code, second.stdout) == (0, f"tiny: already in {cache}\n")
    (cache / tiny.files[0].path).unlink()
    third = runner.invoke(app, ["fetch", "tiny"])
    assert third.stdout == f"tiny: fetched 1 of 2 files into {cache}\n"
    assert server.requests == ["one.bin", "two.bin", "one.bin"]


def test_failed_fetch_lists_the_missing_files(server: Any, tiny: DatasetInfo) -> None:
    server.faults["two.bin"] = ["cut"] * 3
    result = runner.invoke(app, ["fetch"])
    assert result.exit_code == 1
    assert "error: files of Tiny are missing" in result.stderr
    assert "tiny/raw/two.bin" in result.stderr
    assert result.stdout == ""


def test_fetch_does_not_change_a_user_folder(
    server: Any, tiny: DatasetInfo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.invoke(app, ["fetch"])
    monkeypatch.setenv("EQUIPOISE_DATA", str(cache))
    server.requests.clear()
    assert runner.invoke(app, ["fetch"]).stdout == f"tiny: already in {cache}\n"
    damaged = cache / tiny.files[1].path
    damaged.write_bytes(b"damaged")
    result = runner.invoke(app, ["fetch"])
    assert result.exit_code == 1
    assert "two.bin is not the published file" in result.stderr
    assert damaged.read_bytes() == b"damaged"
    assert server.requests == []


def test_fetch_of_the_synthetic_data_set() -> None:
    result = runner.invoke(app, ["fetch", "synthetic-citation"])
    assert (result.exit_code, result.stdout) == (0, "synthetic-citation: built in, nothing to fetch\n")


def test_verify_accepts_the_real_data_sets(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(real_data))
    result = runner.invoke(app, ["verify"])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"{name}: ok" for name in CATALOG]


def test_verify_fails_but_checks_all_data_sets(cache: Path) -> None:
    path = cache / "heterophilous" / "texas.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not the file")
    result = runner.invoke(app, ["verify", "texas", "cornell", "synthetic-citation"])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "texas: failed",
        "  heterophilous/texas.npz: SHA-256 differs",
        "cornell: failed",
        "  heterophilous/cornell.npz is missing",
        "synthetic-citation: ok",
    ]
    assert str(cache) in result.stderr


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_unknown_name_raises(command: str) -> None:
    error = runner.invoke(app, [command, "corra"]).exception
    assert isinstance(error, ChoiceError)
    assert "did you mean 'cora'" in str(error)
