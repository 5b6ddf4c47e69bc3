import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "which_models.py"


def test_table_has_25_models_and_rows_state_what_works():
    script = runpy.run_path(str(SCRIPT))
    assert len(script["MODELS"]) >= 25
    assert script["row"]("`GCN`") == "| `GCN` | yes, 16 neurons | yes | yes | yes |"
    assert script["row"]("`TransformerConv`").split(" | ")[2:4] == ["yes", "yes"]
