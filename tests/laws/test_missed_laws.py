"""Laws that need grouped axes, complex parameters or exponents other than ±1."""

import copy

import pytest
import torch
from torch import nn

from equipoise.laws.discover import discover, verify
from equipoise.laws.law import imbalance, residual
from equipoise.laws.rebalance import rebalance_
from equipoise.laws.telescope import telescope
from equipoise.training.batched_laws import BatchedLaws

X = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Hypernetwork(nn.Module):
    """Weights h(z), read as a (6, 12) matrix."""

    def __init__(self):
        super().__init__()
        self.h, self.out = nn.Linear(4, 72), nn.Linear(6, 3)
        self.register_buffer("z", torch.randn(4))

    def forward(self, x):
        return self.out((x @ self.h(self.z).view(6, 12).T).relu())


class Power(nn.Module):
    """C |B |A x|^p|^p."""

    def __init__(self, power):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 4), nn.Linear(4, 3)
        self.power = power

    def forward(self, x):
        return self.c(self.b(self.a(x).abs() ** self.power).abs() ** self.power)


class TwoPaths(nn.Module):
    """The product of a feature and its ReLU."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = self.a(x)
        return self.b(h * h.relu())


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 6, dtype=torch.complex128), nn.Linear(6, 3, dtype=torch.complex128)

    def forward(self, x):
        return self.b(self.a(x.to(self.a.weight.dtype)))


class HeadWeights(nn.Module):
    """Weights of several heads in one tensor, so that the head and the channel are separate axes."""

    def __init__(self):
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(4, 5, 3)), nn.Linear(12, 2)

    def forward(self, x):
        return self.out(torch.einsum("nf,hfc->nhc", x, self.weight).relu().flatten(1))


def grouped_convolution():
    return nn.Sequential(
        nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4)
    )


CASES = {
    "grouped convolution": (
        grouped_convolution(),
        torch.randn(2, 3, 6, 6),
        [
            "0.weight[i,:] + 0.bias[i] = 2.weight[4(i//4)+k,i%4,:,:]   (16 neurons)",
            "2.weight[i,:,:,:] + 2.bias[i] = 5.weight[:,16i+k]   (16 neurons)",
        ],
    ),
    "hypernetwork": (
        Hypernetwork(),
        torch.randn(9, 12),
        ["h.weight[12i+k,:] + h.bias[12i+k] = out.weight[:,i]   (6 neurons)"],
    ),
    "heads in one tensor": (HeadWeights(), X, ["weight[i//3,:,i%3] = out.weight[:,i]   (12 neurons)"]),
    "complex": (Complex(), X, ["a.weight[i,:] + a.bias[i] = b.weight[:,i]   (6 neurons)"]),
    "degree 2": (
        Power(2),
        X,
        [
            "a.weight[i,:] + a.bias[i] = 2 × b.weight[:,i]   (6 neurons)",
            "b.weight[i,:] + b.bias[i] = 2 × c.weight[:,i]   (4 neurons)",
        ],
    ),
    "degree 3/2": (
        Power(1.5),
        X,
        [
            "2 × a.weight[i,:] + 2 × a.bias[i] = 3 × b.weight[:,i]   (6 neurons)",
            "2 × b.weight[i,:] + 2 × b.bias[i] = 3 × c.weight[:,i]   (4 neurons)",
        ],
    ),
    "product of two paths": (TwoPaths(), X, ["a.weight[i,:] + a.bias[i] = 2 × b.weight[:,i]   (6 neurons)"]),
}


@pytest.mark.parametrize("case", CASES)
def test_laws_are_found_and_everything_that_reads_them_agrees(case):
    model, x, expected = CASES[case]
    model, x = copy.deepcopy(model), x.double()
    if case != "complex":
        model = model.double()
    laws = discover(model, x)
    assert [str(law) for law in laws] == expected
    assert max(verify(model, laws, x)) < 1e-9
    output = model(x)
    output.abs().square().mean().backward()
    sizes = [max(float(slot.gradient_product().abs().max()) for slot in law.slots) for law in laws]
    assert all(float(delta.abs().max()) < 1e-12 * size for delta, size in zip(residual(laws), sizes, strict=True))
    batched = BatchedLaws(laws, [1] * len(laws)).balance()
    torch.testing.assert_close(torch.from_numpy(batched.c), torch.cat(imbalance(laws)))
    drift = torch.cat([law.predicted_drift(0.01) for law in laws])
    torch.testing.assert_close(torch.from_numpy(batched.predicted_drift(0.01)), drift)
    assert rebalance_(laws) < 1e-11
    torch.testing.assert_close(model(x), output, rtol=1e-9, atol=1e-9)


def test_gradient_flow_conserves_the_weighted_norms():
    torch.manual_seed(0)
    model = Power(2).double()
    laws = discover(model, X)
    optimizer, before = torch.optim.SGD(model.parameters(), lr=0.01), imbalance(laws)
    predicted = [torch.zeros_like(c) for c in before]
    for _ in range(5):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        predicted = [total + law.predicted_drift(0.01) for total, law in zip(predicted, laws, strict=True)]
        optimizer.step()
    for old, new, drift in zip(before, imbalance(laws), predicted, strict=True):
        assert float((new - old).abs().max()) > 1e-8
        torch.testing.assert_close(new - old, drift, rtol=1e-8, atol=1e-13)


def test_laws_with_other_exponents_telescope():
    model = Power(2).double()
    identity = telescope(discover(model, X))
    assert str(identity) == "Σ a.weight[i,:] + Σ a.bias[i] + 2 Σ b.bias[i] = 4 Σ c.weight[:,i]"
    model(X).square().mean().backward()
    assert abs(float(identity.residual())) < 1e-12 * abs(float(model.a.weight.grad.mul(model.a.weight.detach()).sum()))
