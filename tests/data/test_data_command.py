from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise.commands.data import app
from equipoise.data import catalog
from equipoise.data.catalog import CATALOG, Entry
from equipoise.errors import ChoiceError

runner = CliRunner()


@pytest.fixture
def tiny(server: Any, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A data set that can be fetched from this machine, and no other."""
    entry: Entry = server.offer_dataset()
    monkeypatch.setattr(catalog, "CATALOG", {"tiny": entry})
    return entry


@pytest.mark.parametrize("command", ["list", "fetch", "verify"])
def test_help_has_an_example(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example:  equipoise data {command}" in result.stdout


def test_list_says_what_there_is_and_where_it_is_looked_for(cache: Path) -> None:
    lines = runner.invoke(app, ["list"]).stdout.splitlines()
    rows = {line.split()[0]: line for line in lines[1:11]}
    assert list(rows) == list(CATALOG)
    assert rows["citeseer"].split()[1:] == ["3327", "9104", "3703", "6", "120/494/988", "not", "here"]
    assert rows["synthetic-citation"].endswith("built in")
    assert lines[-1] == f"files are looked for in {cache}"


def test_list_finds_the_real_ones(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(real_data))
    shown = runner.invoke(app, ["list"]).stdout
    assert shown.count(" here") == 9
    assert "not here" not in shown
    listed = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert [entry["folder"] for entry in listed] == [str(real_data)] * 9 + [None]


def test_list_as_json() -> None:
    listed = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert [entry["name"] for entry in listed] == list(CATALOG)
    assert listed[0] == {
        "name": "cora",
        "title": "Cora",
        "nodes": 2708,
        "edges": 10556,
        "features": 1433,
        "classes": 7,
        "split": {"train": 140, "val": 500, "test": 1000},
        "here": False,
        "folder": None,
    }
    assert listed[-1]["here"] is True


def test_fetch_downloads_what_is_lacking_and_says_so(server: Any, tiny: Entry, cache: Path) -> None:
    first = runner.invoke(app, ["fetch"])
    assert (first.exit_code, first.stdout) == (0, f"tiny: fetched 2 of 2 files into {cache}\n")
    second = runner.invoke(app, ["fetch", "TINY"])
    assert (second.exit_code, second.stdout) == (0, f"tiny: already in {cache}\n")
    (cache / tiny.files[0].path).unlink()
    third = runner.invoke(app, ["fetch", "tiny"])
    assert third.stdout == f"tiny: fetched 1 of 2 files into {cache}\n"
    assert server.requests == ["one.bin", "two.bin", "one.bin"]


def test_fetch_that_fails_says_what_is_missing(server: Any, tiny: Entry) -> None:
    server.troubles["two.bin"] = ["cut"] * 3
    result = runner.invoke(app, ["fetch"])
    assert result.exit_code == 1
    assert "error: files of Tiny are missing" in result.stderr
    assert "tiny/raw/two.bin" in result.stderr
    assert result.stdout == ""


def test_fetch_does_not_mend_a_folder_of_the_users(
    server: Any, tiny: Entry, cache: Path, monkeypatch: pytest.MonkeyPatch
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


def test_fetch_has_nothing_to_do_for_what_is_built_in() -> None:
    result = runner.invoke(app, ["fetch", "synthetic-citation"])
    assert (result.exit_code, result.stdout) == (0, "synthetic-citation: built in, there is nothing to fetch\n")


def test_verify_is_content_with_the_real_ones(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(real_data))
    result = runner.invoke(app, ["verify"])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"{name}: as it should be" for name in CATALOG]


def test_verify_fails_where_one_is_wrong_and_checks_the_others(cache: Path) -> None:
    path = cache / "heterophilous" / "texas.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not the file")
    result = runner.invoke(app, ["verify", "texas", "cornell", "synthetic-citation"])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "texas: wrong",
        "  heterophilous/texas.npz: its SHA-256 differs",
        "cornell: wrong",
        "  heterophilous/cornell.npz is not there",
        "synthetic-citation: as it should be",
    ]
    assert str(cache) in result.stderr


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_an_unknown_name_is_impossible(command: str) -> None:
    error = runner.invoke(app, [command, "corra"]).exception
    assert isinstance(error, ChoiceError)
    assert "did you mean 'cora'" in str(error)
