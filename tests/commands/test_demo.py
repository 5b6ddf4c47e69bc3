import re

import pytest
from typer.testing import CliRunner

from equipoise.cli import app


@pytest.fixture(scope="module")
def demo_output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(app, ["demo", "--layers", "3", "--epochs", "20", "--plot", str(folder / "demo.png")])
    assert result.exit_code == 0, result.output
    return result.stdout, folder


def rows(text):
    return [[cell.strip() for cell in line.strip("│ ").split("│")] for line in text.splitlines() if "│" in line]


def test_prints_laws_and_imbalance_before_and_after(demo_output):
    text, _ = demo_output
    assert "convs.0.lin_l.weight[i,:] = convs.0.att[i] + convs.1.lin_l.weight[:,i]   (64 neurons)" in text
    _, median, largest, after = next(row for row in rows(text) if row[0] == "convs.1.lin_l.weight")
    assert float(median) > 0.5
    assert float(after) < 1e-5 < float(largest)


def test_tabulates_four_schemes(demo_output):
    text, _ = demo_output
    table = {row[0]: row[1:] for row in rows(text) if row[0] in ("xav", "xav-z", "bal-x", "bal-o")}
    assert list(table) == ["xav", "xav-z", "bal-x", "bal-o"]
    accuracy = {scheme: float(re.sub(r"[^0-9.]", "", cells[0])) for scheme, cells in table.items()}
    assert accuracy["bal-o"] > accuracy["xav"]
    assert float(table["bal-o"][3]) > 3 * float(table["xav"][3])


def test_saves_both_figures_and_prints_their_paths(demo_output):
    text, folder = demo_output
    for name in ("demo.png", "demo-laws.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
        assert str(folder / name) in text.replace("\n", "")
