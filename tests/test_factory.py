import pytest
import torch
from torch import nn

from equipoise.errors import FactoryError
from equipoise.factory import load_model

SOURCE = """
import torch
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

def plain(): return mlp(), torch.randn(5, 3)
def grouped(): return mlp(), (torch.randn(5, 3),)
def named(): return mlp(), {"input": torch.randn(5, 3)}
def model_only(): return mlp()
def fails(): return 1 / 0
def build(depth, width=8): return mlp()
def quits(): raise SystemExit
value = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("import torch\nraise RuntimeError('not today')\n")
    (tmp_path / "quits.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "needy.py").write_text("import no_such_package_at_all\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("module", ["my_models", "my_models.py", "./my_models.py"])
@pytest.mark.parametrize("factory", ["plain", "grouped"])
def test_modules_and_files_are_loaded(folder, module, factory):
    model, inputs, kwargs = load_model(f"{module}:{factory}")
    assert isinstance(model, nn.Module)
    assert [tuple(x.shape) for x in inputs] == [(5, 3)]
    assert kwargs == {}


def test_named_inputs(folder):
    _, inputs, kwargs = load_model("my_models:named")
    assert inputs == ()
    assert torch.is_tensor(kwargs["input"])


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("my_models", "does not name a factory"),
        (":plain", "does not name a factory"),
        ("my_models:plian", r"has no function 'plian'(.|\n)*did you mean plain"),
        ("my_models:value", "has type int, not a function"),
        ("my_models:model_only", "returned Sequential, not a model and its inputs"),
        ("my_models:fails", r"fails\(\) failed: ZeroDivisionError(.|\n)*my_models.py:\d+"),
        ("no_such_module:plain", "there is no module 'no_such_module'"),
        ("no_such_file.py:plain", "there is no file no_such_file.py"),
        ("my_models:build", "build takes depth"),
        ("quits:plain", "quits cannot be imported: SystemExit: 0"),
        ("my_models:quits", r"quits\(\) failed: SystemExit"),
        ("broken:plain", r"broken cannot be imported: RuntimeError: not today(.|\n)*broken.py:2"),
        ("needy:plain", "needy cannot be imported: ModuleNotFoundError: No module named 'no_such_package_at_all'"),
    ],
)
def test_errors_name_the_mistake(folder, reference, message):
    with pytest.raises(FactoryError, match=message):
        load_model(reference)
