"""The examples in docs/examples do what they say."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_watch_with_lightning():
    pytest.importorskip("lightning")
    frame = load("watch_with_lightning").main().frame()
    assert sorted(frame.epoch.unique()) == [1, 5, 10, 15, 20]
    assert {"gradient/features", "balance/c", "train/train_loss"} <= set(frame.quantity)


def test_watch_with_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    load("watch_with_tensorboard").main(str(tmp_path))
    assert {path.parent.name for path in tmp_path.glob("*/events*")} == {"xav", "bal-o"}
