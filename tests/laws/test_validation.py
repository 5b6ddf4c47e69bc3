"""Error messages for invalid models, inputs and outputs."""

import pytest
import torch
from torch import nn

from equipoise.errors import EquipoiseError, ForwardError, ModelError, OutputError
from equipoise.laws.discover import discover
from equipoise.laws.explain import explain

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


class TransformedOutput(nn.Module):
    """An MLP that returns a function of its output."""

    def __init__(self, transform):
        super().__init__()
        self.mlp, self.transform = mlp(), transform

    def forward(self, x):
        return self.transform(self.mlp(x))


class FixedDtype(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x):
        return self.linear(x) @ torch.ones(5, 5, dtype=torch.float32)


class NonLeafWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.ones(5))
        self.doubled = 2 * self.p

    def forward(self, x):
        return x * self.doubled


class InPlaceParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.ones(5))

    def forward(self, x):
        self.p.mul_(2.0)
        return x * self.p


def frozen_mlp() -> nn.Module:
    return mlp().requires_grad_(False)


INVALID_CALLS = {
    "not a module": (lambda x: x, (X,), ModelError, "expected a torch.nn.Module, got function"),
    "no parameters": (nn.ReLU(), (X,), ModelError, "no trainable parameters"),
    "all frozen": (frozen_mlp(), (X,), ModelError, "no trainable parameters"),
    "non-leaf tensor": (NonLeafWeight(), (X,), ModelError, "cannot be copied"),
    "wrong shape": (mlp(), (torch.randn(6, 4),), ForwardError, r"does not run on these inputs(.|\n)*float32\[6, 4\]"),
    "too few inputs": (mlp(), (), ForwardError, "does not run on these inputs: TypeError"),
    "lazy, wrong input": (
        nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)),
        ("x",),
        ForwardError,
        r"does not run on these inputs(.|\n)*a str",
    ),
    "wrong type": (mlp(), ("x",), ForwardError, r"does not run on these inputs(.|\n)*a str"),
    "fixed dtype": (FixedDtype(), (X,), ForwardError, "runs, but not as a float64 copy"),
    "in-place update of a parameter": (InPlaceParameter(), (X,), ForwardError, "in-place"),
    "output is a tuple": (
        TransformedOutput(lambda y: (y, y)),
        (X,),
        OutputError,
        r"returns a tuple of 2, not a tensor(.|\n)*output=lambda",
    ),
    "output is a dictionary": (
        TransformedOutput(lambda y: {"paper": y}),
        (X,),
        OutputError,
        r"returns a dict, not a tensor(.|\n)*output=lambda out: out\['paper'\]",
    ),
    "output is None": (TransformedOutput(lambda _: None), (X,), OutputError, "returns a NoneType"),
    "output is an argmax": (
        TransformedOutput(lambda y: y.argmax(-1)),
        (X,),
        OutputError,
        "int64.*does not depend on the parameters",
    ),
    "output is detached": (
        TransformedOutput(lambda y: y.detach()),
        (X,),
        OutputError,
        "does not depend on the parameters",
    ),
    "parameters without values": (mlp().to("meta"), (X,), ModelError, "parameters without values"),
    "input without values": (mlp(), (X.to("meta"),), ForwardError, "has no values"),
    "inputs are empty": (mlp(), (X[:0],), ForwardError, "the inputs are empty"),
    "TorchScript": (torch.jit.script(mlp()), (X,), ModelError, "TorchScript"),
    "output is not finite": (TransformedOutput(lambda y: y / 0.0), (X,), OutputError, "not finite"),
}


@pytest.mark.parametrize("call", INVALID_CALLS)
def test_discover_raises_an_error_with_remedy(call):
    model, inputs, error_type, message = INVALID_CALLS[call]
    with pytest.raises(error_type, match=message) as caught:
        discover(model, *inputs)
    assert isinstance(caught.value, EquipoiseError)
    assert caught.value.remedy


@pytest.mark.parametrize("call", INVALID_CALLS)
def test_explain_raises_the_same_error(call):
    model, inputs, error_type, message = INVALID_CALLS[call]
    with pytest.raises(error_type, match=message):
        explain(model, *inputs)


def test_a_layer_without_neurons_has_no_law():
    model = nn.Sequential(nn.Linear(5, 0), nn.ReLU(), nn.Linear(0, 3))
    assert discover(model, X) == []


@pytest.mark.parametrize("selector", ["out", lambda result: result["out"], lambda result: 1 / 0])
def test_an_output_selector_that_fails_is_named(selector):
    with pytest.raises(OutputError, match="output= failed on float64"):
        discover(mlp(), X, output=selector)


def test_output_selects_the_tensor():
    laws = discover(TransformedOutput(lambda y: {"scores": y, "other": 1}), X, output=lambda result: result["scores"])
    assert [law.neurons for law in laws] == [8]
