"""Hostile text in an experiment file, in results and in names of files is inert in every output."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.experiments.parser import parse_experiment
from equipoise.experiments.result import failed_result
from equipoise.experiments.results_csv import read_csv, write_csv
from equipoise.experiments.spec import RunSpec
from equipoise.inert_text import escape_formula, hidden_characters, printable, unescape_formula
from equipoise.report.formats import as_csv, as_latex
from equipoise.report.tables import table_report
from tests.report.runs import COMPLETE, SMALL, make_results

HOSTILE = (
    *("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'; DROP TABLE runs; --", "=cmd|' /C calc'!A0"),
    *("+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''@x", "../../etc/passwd", "a/b\\c", "\x1b[2J\x1b]0;x\x07"),
    *("\u202egnp.exe", "\u2066x\u2069", "{{ 7 * 7 }}", r"\input{/etc/passwd}", r"$\write18{ls}$", "%_#&~^{}", "\x00"),
)


@given(st.one_of(st.text(), st.sampled_from(HOSTILE)))
def test_formulas_are_escaped_and_read_back(text: str) -> None:
    escaped = escape_formula(text)
    assert unescape_formula(escaped) == text
    assert not escaped or escaped[0] not in "=+-@\t\r"


@given(st.one_of(st.text(), st.sampled_from(HOSTILE)))
def test_printable_text_has_no_hidden_characters(text: str) -> None:
    assert not hidden_characters(printable(text))
    if not hidden_characters(text):
        assert printable(text) == text


@pytest.mark.parametrize("text", [text for text in HOSTILE if "\x00" not in text])
def test_no_cell_of_a_table_is_a_formula_and_texts_are_read_back(text: str, tmp_path: Path) -> None:
    spec = RunSpec(dataset="cora", depth=2, lr=0.1)
    hostile = replace(failed_result(spec, text, text), machine=text, when=text, versions={"torch": text})
    path = tmp_path / "table.csv"
    write_csv([hostile], path)
    with path.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert all(not cell or cell[0] not in "=+-@\t\r" for cell in row.values())
    assert list(read_csv(path)) == [hostile]


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.strip() and not hidden_characters(text)])
def test_no_cell_of_a_report_is_a_formula(text: str) -> None:
    grid = '[grid]\ndataset = "texas"\ndepth = 2\nlr = 0.05\nseed = [0]\n'
    experiment = parse_experiment(
        f"{grid}[variants]\nother = {{}}\n{json.dumps(text)} = {{ heads = 2 }}", "v", "v.toml"
    )
    rows = list(csv.DictReader(io.StringIO(as_csv(table_report(experiment, [])), newline="")))
    assert [unescape_formula(row["variant"]) for row in rows] == ["other", text]
    assert all(not cell or cell[0] not in "=+-@\t\r" for row in rows for cell in row.values())


@pytest.mark.parametrize("text", [text for text in HOSTILE if hidden_characters(text)])
@pytest.mark.parametrize("place", ["A small_table", "50 % of it", "mostly faster"])
def test_control_characters_in_an_experiment_file_are_refused(text: str, place: str) -> None:
    escaped = "".join(f"\\U{ord(character):08x}" for character in text)
    with pytest.raises(SpecError, match="control character") as caught:
        parse_experiment(SMALL.replace(place, escaped), "small", "small.toml")
    assert not hidden_characters(str(caught.value))


@pytest.mark.parametrize("text", [text for text in HOSTILE if not hidden_characters(text)])
def test_latex_is_escaped(text: str) -> None:
    escaped = "".join(f"\\U{ord(character):08x}" for character in text)
    experiment = parse_experiment(SMALL.replace("A small_table", escaped), "small", "small.toml")
    caption = next(line for line in as_latex(table_report(experiment, make_results(experiment, COMPLETE))).splitlines()
                   if "caption" in line)  # fmt: skip
    assert r"\input" not in caption
    assert r"\write18" not in caption
    assert "$" not in caption.replace(r"\$", "").replace("$<$", "").replace("$>$", "")


def test_an_error_message_does_not_reach_the_terminal_unescaped(tmp_path: Path) -> None:
    name = "\x1b[2J\u202e.toml"
    command = [sys.executable, "-m", "equipoise", "report", name, "--store", str(tmp_path / "none.sqlite")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "\x1b[2J" not in done.stderr
    assert "\u202e" not in done.stderr
