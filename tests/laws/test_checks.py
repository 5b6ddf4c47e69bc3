"""What users do wrong, and what they are told."""

import pytest
import torch
from torch import nn

from equipoise.errors import EquipoiseError, ForwardError, ModelError, OutputError
from equipoise.laws.discover import discover
from equipoise.laws.explain import explain

X = torch.randn(6, 5)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


class Returns(nn.Module):
    """An MLP whose result goes through a function."""

    def __init__(self, result):
        super().__init__()
        self.mlp, self.result = mlp(), result

    def forward(self, x):
        return self.result(self.mlp(x))


class FixedDtype(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x):
        return self.linear(x) @ torch.ones(5, 5, dtype=torch.float32)


class ComputedWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.ones(5))
        self.kept = 2 * self.p

    def forward(self, x):
        return x * self.kept


class WritesItsParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.ones(5))

    def forward(self, x):
        self.p.mul_(2.0)
        return x * self.p


def frozen() -> nn.Module:
    return mlp().requires_grad_(False)


MISTAKES = {
    "not a module": (lambda x: x, (X,), ModelError, "expected a torch.nn.Module, got function"),
    "no parameters": (nn.ReLU(), (X,), ModelError, "no trainable parameters"),
    "all frozen": (frozen(), (X,), ModelError, "no trainable parameters"),
    "lazy": (
        nn.Sequential(nn.LazyLinear(4), nn.ReLU()),
        (X,),
        ModelError,
        r"lazy(.|\n)*0.weight(.|\n)*run the model once",
    ),
    "cannot be copied": (ComputedWeight(), (X,), ModelError, "cannot be copied"),
    "wrong shape": (mlp(), (torch.randn(6, 4),), ForwardError, r"does not run on these inputs(.|\n)*float32\[6, 4\]"),
    "too few inputs": (mlp(), (), ForwardError, "does not run on these inputs: TypeError"),
    "wrong type": (mlp(), ("x",), ForwardError, r"does not run on these inputs(.|\n)*a str"),
    "fixed dtype": (FixedDtype(), (X,), ForwardError, "runs as it is, but not as a float64 copy"),
    "writes in place": (WritesItsParameter(), (X,), ForwardError, "in-place"),
    "a tuple": (
        Returns(lambda y: (y, y)),
        (X,),
        OutputError,
        r"returns a tuple of 2, not a tensor(.|\n)*output=lambda",
    ),
    "nothing": (Returns(lambda _: None), (X,), OutputError, "returns a NoneType"),
    "a decision": (Returns(lambda y: y.argmax(-1)), (X,), OutputError, "int64.*does not depend on the parameters"),
    "detached": (Returns(lambda y: y.detach()), (X,), OutputError, "does not depend on the parameters"),
    "not finite": (Returns(lambda y: y / 0.0), (X,), OutputError, "not finite"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_with_a_remedy(mistake):
    model, inputs, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=message) as caught:
        discover(model, *inputs)
    assert isinstance(caught.value, EquipoiseError)
    assert caught.value.remedy


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if name != "lazy"])
def test_explain_says_the_same(mistake):
    model, inputs, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=message):
        explain(model, *inputs)


def test_output_picks_the_tensor():
    laws = discover(Returns(lambda y: {"scores": y, "other": 1}), X, output=lambda result: result["scores"])
    assert [law.neurons for law in laws] == [8]
