"""tools/errata.py shows each error of the paper by numbers."""

import re
import sys
from pathlib import Path

import pytest

from equipoise.report.summary import estimate
from tests.real_data import require

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import errata  # noqa: E402

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]\d+)?")


def numbers(capsys, erratum):
    """The numbers in each line after the heading."""
    errata.main([str(erratum)])
    return [[float(n) for n in NUMBER.findall(line)] for line in capsys.readouterr().out.splitlines()[1:]]


@pytest.mark.parametrize("erratum", [1, 2])
def test_a_law_as_printed_has_a_residual_and_the_corrected_one_has_none(capsys, erratum):
    (terms,), (*_, printed), (*_, corrected) = numbers(capsys, erratum)
    assert printed > 1e-3 * terms
    assert corrected < 1e-14 * terms


def test_c_is_not_zero_but_its_derivative_is(capsys):
    (value,), (*_, derivative) = numbers(capsys, 3)
    assert value > 0.01
    assert derivative < 1e-14


def test_columns_of_the_last_layer_have_squared_norm_two_only_after_balancing(capsys):
    (*_, drawn), (*_, balanced), (*_, predicted) = numbers(capsys, 4)
    assert drawn == pytest.approx(predicted, abs=1e-3)
    assert balanced == pytest.approx(2, abs=1e-3)


def test_variance_of_attention_is_that_of_the_text(capsys):
    errata.main(["5"])
    drawn, text, script = (float(n) for n in re.findall(r"0\.\d{4}", capsys.readouterr().out))
    assert drawn == pytest.approx(text, rel=0.05)
    assert drawn > 1.5 * script


def test_the_threshold_of_the_script_trains_longer(capsys, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", str(require("texas")))
    errata.main(["6"])
    first, second = (int(n) for n in re.findall(r"(\d+) epochs", capsys.readouterr().out))
    assert first < second


def test_bal_o_of_the_lipschitz_table_is_that_of_adam(capsys):
    errata.main(["7"])
    rows = [dict(re.findall(r"(Table \d) ([\d.]+)", line)) for line in capsys.readouterr().out.splitlines()[1:]]
    assert max(abs(float(row["Table 6"]) - float(row["Table 2"])) for row in rows) > 4
    both = [row for row in rows if "Table 4" in row]
    assert len(both) == 2
    assert all(abs(float(row["Table 6"]) - float(row["Table 4"])) < 0.05 for row in both)


def test_two_rows_of_the_adam_table_are_equal(capsys):
    errata.main(["8"])
    first, second = (line.rpartition(":")[2] for line in capsys.readouterr().out.splitlines()[1:])
    assert first == second


def test_marks_are_not_at_the_highest_mean(capsys):
    rows = decimals(capsys, 9)
    assert len(rows) == 3
    assert all(marked < best for marked, best in rows)


def test_intervals_of_five_accuracies_are_narrower(capsys):
    rows = decimals(capsys, 10)
    assert len(rows) == 3
    assert all(ci > widest == pytest.approx(errata.widest_interval(mean, 5), abs=0.05) for mean, ci, widest in rows)


def test_rows_of_the_first_xavier_matrix_are_longer_than_one(capsys):
    (measured,), (printed, corrected) = decimals(capsys, 11)
    assert printed < 0.1
    assert measured == pytest.approx(corrected, rel=0.02)


def test_widest_interval_is_that_of_accuracies_0_and_100():
    assert errata.widest_interval(40, 5) == pytest.approx(estimate([100.0, 100.0, 0.0, 0.0, 0.0]).ci)
    assert errata.widest_interval(40, 5) > estimate([100.0, 99.0, 1.0, 0.0, 0.0]).ci


def decimals(capsys, erratum):
    """The numbers with a decimal point in each line after the heading."""
    errata.main([str(erratum)])
    return [[float(n) for n in re.findall(r"\d+\.\d+", line)] for line in capsys.readouterr().out.splitlines()[1:]]


@pytest.mark.parametrize("erratum", errata.ERRATA)
def test_output_on_the_page_is_that_of_the_command(capsys, monkeypatch, erratum):
    if erratum == 6:
        monkeypatch.setenv("EQUIPOISE_DATA", str(require("texas")))
    page = (ROOT / "docs" / "theory" / "errata.md").read_text(encoding="utf-8")
    (shown,) = re.findall(rf"\$ python tools/errata.py {erratum}\n(.*?)```", page, re.DOTALL)
    errata.main([str(erratum)])
    printed = capsys.readouterr().out
    assert NUMBER.sub("", shown) == NUMBER.sub("", printed)
    for expected, actual in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        assert float(actual) == pytest.approx(float(expected), rel=0.05, abs=1e-15)  # residuals are rounding errors


def test_every_erratum_of_the_page_has_its_command():
    page = (ROOT / "docs" / "theory" / "errata.md").read_text(encoding="utf-8")
    assert [int(n) for n in re.findall(r"python tools/errata.py (\d+)", page)] == list(errata.ERRATA)


def test_an_unknown_number_is_refused(capsys):
    with pytest.raises(SystemExit):
        errata.main(["12"])
    assert "there is no erratum 12; choose from 1 to 11" in capsys.readouterr().err
