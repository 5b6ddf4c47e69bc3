import pytest
import torch
from torch import nn

from equipoise.errors import GradientError, LawError
from equipoise.laws.slot import Slot


class OneParameter(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.randn(*shape, dtype=torch.float64))


def make_slot(shape: tuple[int, ...], neurons: int, inner: int = 1, length: int = 0, start: int = 0) -> Slot:
    return Slot(OneParameter(*shape), "p", shape, neurons, inner, length, start)


SLOTS = {
    "rows": (make_slot((5, 3), 5, 3), "p[i,:]", lambda p: p.sum(1)),
    "columns": (make_slot((5, 3), 3), "p[:,i]", lambda p: p.sum(0)),
    "middle axis": (make_slot((2, 5, 3), 5, 3), "p[:,i,:]", lambda p: p.sum((0, 2))),
    "flattened attention": (make_slot((1, 4, 3), 12), "p[i]", lambda p: p.flatten()),
    "averaged heads": (make_slot((1, 4, 3), 3), "p[:,i]", lambda p: p.sum((0, 1))),
    "heads": (make_slot((1, 4, 3), 4, 3), "p[i,:]", lambda p: p.sum((0, 2))),
    "fold over blocks": (make_slot((8, 3), 4, 3), "p[4h+i,:]", lambda p: p.view(2, 4, 3).sum((0, 2))),
    "fold over neighbours": (make_slot((3, 8), 4, 2), "p[:,2i+k]", lambda p: p.view(3, 4, 2).sum((0, 2))),
    "window": (make_slot((3, 10), 4, 1, 10, 5), "p[:,5+i]", lambda p: p[:, 5:9].sum(0)),
    "window of rows": (make_slot((9, 2), 3, 2, 9, 6), "p[6+i,:]", lambda p: p[6:9].sum(1)),
    "two axes merged": (make_slot((2, 3, 5), 6, 5), "p[i,:]", lambda p: p.flatten(0, 1).sum(1)),
    "scalar": (make_slot((1,), 1), "p", lambda p: p),
    "whole parameter": (make_slot((2, 3), 1, 6), "p[:]", lambda p: p.sum().view(1)),
}


@pytest.mark.parametrize("kind", SLOTS)
def test_entries_and_string_representation(kind):
    s, text, expected = SLOTS[kind]
    p = s.parameter.detach()
    assert str(s) == text
    torch.testing.assert_close(s.sum_per_neuron(p), expected(p))
    torch.testing.assert_close(s.squared_norm(), expected(p.square()))


@pytest.mark.parametrize("kind", SLOTS)
def test_broadcast_is_the_adjoint_of_sum_per_neuron(kind):
    s, _, _ = SLOTS[kind]
    p, v = s.parameter.detach(), torch.randn(s.neurons, dtype=torch.float64)
    torch.testing.assert_close((s.broadcast(v, 0.0) * p).sum(), s.sum_per_neuron(p) @ v)
    filled = s.broadcast(torch.zeros_like(v), 7.0)
    assert int((filled == 7.0).sum()) == p.numel() - p.numel() * s.neurons // s.length


def test_gradient_products_need_a_backward_pass():
    s = make_slot((5, 3), 5, 3)
    with pytest.raises(GradientError, match=r"p has no gradient(.|\n)*loss\.backward\(\)"):
        s.gradient_product()
    p = s.parameter
    p.pow(3).sum().backward()
    torch.testing.assert_close(s.gradient_product(), (3 * p.detach() ** 3).sum(1))
    torch.testing.assert_close(s.squared_gradient(), (9 * p.detach() ** 4).sum(1))


def test_non_contiguous_parameters():
    module = OneParameter(4, 3, 2, 2)
    module.p.data = module.p.data.contiguous(memory_format=torch.channels_last)
    s = Slot(module, "p", (4, 3, 2, 2), 3, 4)
    torch.testing.assert_close(s.squared_norm(), module.p.detach().square().sum((0, 2, 3)))


@pytest.mark.parametrize(
    ("neurons", "inner", "length", "start"), [(4, 1, 0, 0), (2, 1, 3, 2), (0, 1, 3, 0), (5, 2, 0, 0)]
)
def test_rejects_slots_that_do_not_divide_the_parameter(neurons, inner, length, start):
    with pytest.raises(LawError, match="does not divide a parameter of shape"):
        make_slot((5, 3), neurons, inner, length, start)


def test_uses_the_current_parameter_and_rejects_another_shape():
    module = OneParameter(5, 3)
    s = Slot(module, "p", (5, 3), 5, 3)
    module.p = nn.Parameter(torch.ones(5, 3))
    assert s.squared_norm().tolist() == [3.0] * 5
    module.p = nn.Parameter(torch.ones(5, 4))
    with pytest.raises(LawError, match=r"shape \(5, 4\), but the law expects \(5, 3\)"):
        s.squared_norm()
    del module.p
    with pytest.raises(LawError, match="OneParameter has no parameter 'p'"):
        s.squared_norm()


def test_bind_to_another_model_with_the_same_architecture():
    s, other = make_slot((5, 3), 5, 3), OneParameter(5, 3)
    assert s.bind(other).parameter is other.p
    with pytest.raises(LawError):
        s.bind(OneParameter(3, 5))
