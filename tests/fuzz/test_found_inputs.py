"""Inputs on which fuzzing found a defect, tried again with the same checks in this process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz.files import FILES
from tests.fuzz.interface import INTERFACE
from tests.fuzz.layers import LAYERS, Call, Edges
from tests.fuzz.mutations import Edit
from tests.fuzz.runner import Target
from tests.fuzz.stacks import STACKS, StackCall
from tests.fuzz.tensors import Features

TARGETS = {target.name: target for target in (LAYERS, STACKS, *INTERFACE, *FILES)}
X, NO_EDGES = Features((5, 3)), Edges(((), ()))


def data(x: Features = X, labels: str = "classes", form: int = 3) -> tuple[Any, ...]:
    """Data of the targets ``train`` and ``depth_check``; form 3 is one graph, form 1 are loaders."""
    return (x, NO_EDGES, labels, "some", "some", form)


FOUND = {
    "infinite slope": ("Stack", ("gatv2", [3, 8, 8], {"negative_slope": float("inf")}, X, NO_EDGES, False)),
    "CSC features": (
        "fused layers",
        Call("GCNConv", {"in_channels": 3, "out_channels": 8}, (Features((5, 3), layout="csc"),), NO_EDGES),
    ),
    "CSC features of a stack": ("fused stacks", StackCall((3, 3), (Features((5, 3), layout="csc"),), NO_EDGES)),
    "features of another width": (
        "fused stacks",
        StackCall((3, 8, 3), (Features((5, 4)),), NO_EDGES, gradients=False),
    ),
    "weights that overflow": ("initialize_", ("stack", "bal-o", 1e300, "forward", None)),
    "features of one dimension": ("train", ("stack", data(Features((5,), values="zeros")), {"epochs": 1}, False)),
    "features of a subclass": (
        "train",
        ("stack", data(Features((5, 3), values="tiny", layout="subclass")), {"epochs": 1}, False),
    ),
    "quantised features": (
        "train",
        ("stack", data(Features((5, 3), layout="quantized")), {"epochs": 1, "sparse_features": True}, False),
    ),
    "boolean labels in a loader": ("train", ("stack", data(labels="bool", form=1), {"epochs": 1}, False)),
    "an edge and no nodes": ("Recorder", ("stack", {}, [0], Features((0, 3)), Edges(((0,), (0,))))),
    "labels of 2**62": ("depth_check", ("stack", data(labels="huge", form=1), {"depths": (2,), "steps": 1})),
    "labels on the device meta": ("depth_check", ("stack", data(labels="meta", form=1), {"depths": (2,), "steps": 1})),
    "array with a damaged header": ("recordings", ([Edit("zero", 0.875, bytes(8))], [])),
}


@pytest.mark.parametrize(("name", "value"), FOUND.values(), ids=FOUND)
def test_an_input_that_fuzzing_found(name: str, value: Any, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    target: Target = TARGETS[name]
    target.check(value)
