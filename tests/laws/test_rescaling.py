"""The cells of a rescaling against the dense matrix of exponents."""

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.laws.cells import MultipleCells
from equipoise.laws.rescaling import Rescaling


class Bilinear(nn.Module):
    """Every entry of ``product.weight`` belongs to three laws."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 5), nn.Linear(6, 4)
        self.product = nn.Bilinear(5, 4, 3)
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.product(self.one(x).relu(), self.other(x).relu()).relu())


class Concatenated(nn.Module):
    """Two laws share windows of the columns of ``joint.weight``; its rows belong to a third law."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 4), nn.Linear(4, 5)
        self.joint, self.out = nn.Linear(9, 3), nn.Linear(3, 2)

    def forward(self, x):
        one = self.one(x).relu()
        return self.out(self.joint(torch.cat([one, self.other(one).relu()], dim=1)).relu())


def conv():
    layers = nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    return nn.Sequential(*layers)


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))


def shared_head():
    """A window of ``weight`` belongs to a law, the rest to none."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = nn.Linear(6, 4), nn.Linear(10, 2)

        def forward(self, x):
            return self.out(torch.cat([x, self.hidden(x).relu()], dim=1))

    return Model()


class Recurrent(nn.Module):
    """Diagonal entries of ``step.weight`` are on both sides of the same neuron."""

    def __init__(self):
        super().__init__()
        self.into, self.step, self.out = nn.Linear(6, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.step(self.step(self.into(x).relu()).relu()).relu())


MODELS = {
    "recurrent": (Recurrent, (7, 6)),
    "mlp": (mlp, (7, 6)),
    "three laws": (Bilinear, (7, 6)),
    "windows": (Concatenated, (7, 6)),
    "groups": (conv, (2, 2, 5, 5)),
    "part of a parameter": (shared_head, (7, 6)),
}


def dense_exponents(rescaling):
    """N: for every parameter one row per entry, one column per neuron."""
    matrices = []
    for parameter in rescaling.parameters():
        columns = []
        for law in rescaling.laws:
            for neuron in torch.eye(law.neurons, dtype=torch.float64):
                column = torch.zeros(parameter.numel(), dtype=torch.float64)
                for exponent, slot in law.terms:
                    if slot.parameter is parameter:
                        column += exponent * slot.broadcast(neuron, fill_value=0.0).flatten()
                columns.append(column)
        matrices.append(torch.stack(columns, dim=1).numpy())
    return matrices


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_the_dense_matrix_of_exponents(name):
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model = build().double()
    laws = [law for law in eq.discover(model, torch.randn(shape, dtype=torch.float64)) if law.outgoing]
    assert laws
    rescaling = Rescaling(laws)
    assert any(isinstance(kind, MultipleCells) for kind in rescaling._kinds) == (name == "three laws")
    parameters = rescaling.parameters()
    exponents = dense_exponents(rescaling)
    rng = np.random.default_rng(0)
    s, v = rng.normal(size=(2, rescaling.neurons))
    scales = rng.uniform(0.5, 2.0, len(parameters))

    squares = [
        np.exp(2.0 * n @ s) * parameter.detach().numpy().ravel() ** 2 / scale
        for n, parameter, scale in zip(exponents, parameters, scales, strict=True)
    ]
    cells = rescaling.rescale(rescaling.squares(parameters, scales), s, 2.0)
    totals = rescaling.totals(cells)
    incoming = sum(np.clip(n, 0, None).T @ w for n, w in zip(exponents, squares, strict=True))
    outgoing = sum(np.clip(-n, 0, None).T @ w for n, w in zip(exponents, squares, strict=True))
    np.testing.assert_allclose(np.subtract(*rescaling.sides(totals)), incoming - outgoing)
    if name != "recurrent":  # both sides have entries that cancel in N
        np.testing.assert_allclose(rescaling.sides(totals), (incoming, outgoing))

    hessian = sum(n.T * w @ n for n, w in zip(exponents, squares, strict=True))
    diagonal, multiply = rescaling.hessian(cells, totals)
    assert (diagonal >= 0.999 * np.diag(hessian)).all()
    np.testing.assert_allclose(multiply(v), hessian @ v)
    assert rescaling.largest_change(s) >= max(np.abs(n @ s).max() for n in exponents)

    for power in (1, -1, -2):
        tensors = [torch.randn(parameter.shape, dtype=torch.float64) for parameter in parameters]
        copies = [tensor.clone().numpy().ravel() for tensor in tensors]
        rescaling.rescale_([[(tensor, power)] for tensor in tensors], s)
        for n, tensor, copy in zip(exponents, tensors, copies, strict=True):
            np.testing.assert_allclose(tensor.numpy().ravel(), np.exp(power * n @ s) * copy)


def test_tensors_of_any_layout_are_rescaled():
    torch.manual_seed(0)
    model = mlp()
    rescaling = Rescaling(eq.discover(model, torch.randn(7, 6)))
    s = np.random.default_rng(0).normal(size=rescaling.neurons)
    dense = [torch.randn(parameter.shape) for parameter in rescaling.parameters()]
    sparse = [tensor.to_sparse() for tensor in dense]
    columns = [tensor.clone().mT.contiguous().mT if tensor.dim() == 2 else tensor.clone() for tensor in dense]
    for tensors in (dense, sparse, columns):
        rescaling.rescale_([[(tensor, -1)] for tensor in tensors], s)
    for reference, other, transposed in zip(dense, sparse, columns, strict=True):
        torch.testing.assert_close(other.to_dense(), reference)
        torch.testing.assert_close(transposed, reference)
