from typer.testing import CliRunner

from equipoise.cli import app


def test_shows_laws_imbalance_and_balance_and_saves_a_picture(tmp_path):
    picture = tmp_path / "demo.png"
    result = CliRunner().invoke(app, ["demo", "--plot", str(picture)])
    assert result.exit_code == 0
    assert "convs.0.lin_l.weight[i,:] = convs.0.att[i] + convs.1.lin_l.weight[:,i]   (64 neurons)" in result.stdout
    assert str(picture) in result.stdout.replace("\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    row = next(line for line in result.stdout.splitlines() if "convs.1.lin_l.weight" in line and "│" in line)
    _, median, largest, after = (cell.strip() for cell in row.strip("│ ").split("│"))
    assert float(median) > 0.5
    assert float(after) < 1e-5 < float(largest)
