import pytest
import torch
from torch import nn

from equipoise.errors import GradientError, LawError
from equipoise.laws.slot import Slot


class Holder(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.randn(*shape, dtype=torch.float64))


def slot(shape: tuple[int, ...], neurons: int, inner: int = 1, length: int = 0, start: int = 0) -> Slot:
    return Slot(Holder(*shape), "p", shape, neurons, inner, length, start)


CASES = {
    "rows": (slot((5, 3), 5, 3), "p[i,:]", lambda p: p.sum(1)),
    "columns": (slot((5, 3), 3), "p[:,i]", lambda p: p.sum(0)),
    "middle axis": (slot((2, 5, 3), 5, 3), "p[:,i,:]", lambda p: p.sum((0, 2))),
    "flattened attention": (slot((1, 4, 3), 12), "p[i]", lambda p: p.flatten()),
    "averaged heads": (slot((1, 4, 3), 3), "p[:,i]", lambda p: p.sum((0, 1))),
    "heads": (slot((1, 4, 3), 4, 3), "p[i,:]", lambda p: p.sum((0, 2))),
    "fold over blocks": (slot((8, 3), 4, 3), "p[4h+i,:]", lambda p: p.view(2, 4, 3).sum((0, 2))),
    "fold over neighbours": (slot((3, 8), 4, 2), "p[:,2i+k]", lambda p: p.view(3, 4, 2).sum((0, 2))),
    "window": (slot((3, 10), 4, 1, 10, 5), "p[:,5+i]", lambda p: p[:, 5:9].sum(0)),
    "window of rows": (slot((9, 2), 3, 2, 9, 6), "p[6+i,:]", lambda p: p[6:9].sum(1)),
    "two axes merged": (slot((2, 3, 5), 6, 5), "p[i,:]", lambda p: p.flatten(0, 1).sum(1)),
    "scalar": (slot((1,), 1), "p", lambda p: p),
    "whole": (slot((2, 3), 1, 6), "p[:]", lambda p: p.sum().view(1)),
}


@pytest.mark.parametrize("case", CASES)
def test_reads_the_right_entries_and_says_which(case):
    s, text, expected = CASES[case]
    p = s.parameter.detach()
    assert str(s) == text
    torch.testing.assert_close(s.total(p), expected(p))
    torch.testing.assert_close(s.squared_norm(), expected(p.square()))


@pytest.mark.parametrize("case", CASES)
def test_spread_is_the_adjoint_of_total(case):
    s, _, _ = CASES[case]
    p, v = s.parameter.detach(), torch.randn(s.neurons, dtype=torch.float64)
    torch.testing.assert_close((s.spread(v, 0.0) * p).sum(), s.total(p) @ v)
    outside = s.spread(torch.zeros_like(v), 7.0)
    assert int((outside == 7.0).sum()) == p.numel() - p.numel() * s.neurons // s.length


def test_gradient_products_need_a_backward_pass():
    s = slot((5, 3), 5, 3)
    with pytest.raises(GradientError, match=r"p has no gradient(.|\n)*loss\.backward\(\)"):
        s.gradient_product()
    p = s.parameter
    p.pow(3).sum().backward()
    torch.testing.assert_close(s.gradient_product(), (3 * p.detach() ** 3).sum(1))
    torch.testing.assert_close(s.squared_gradient(), (9 * p.detach() ** 4).sum(1))


def test_works_on_parameters_that_are_not_contiguous():
    holder = Holder(4, 3, 2, 2)
    holder.p.data = holder.p.data.contiguous(memory_format=torch.channels_last)
    s = Slot(holder, "p", (4, 3, 2, 2), 3, 4)
    torch.testing.assert_close(s.squared_norm(), holder.p.detach().square().sum((0, 2, 3)))


@pytest.mark.parametrize(
    ("neurons", "inner", "length", "start"), [(4, 1, 0, 0), (2, 1, 3, 2), (0, 1, 3, 0), (5, 2, 0, 0)]
)
def test_refuses_what_does_not_divide_the_parameter(neurons, inner, length, start):
    with pytest.raises(LawError, match="does not divide a parameter of shape"):
        slot((5, 3), neurons, inner, length, start)


def test_follows_a_replaced_parameter_and_refuses_another_shape():
    holder = Holder(5, 3)
    s = Slot(holder, "p", (5, 3), 5, 3)
    holder.p = nn.Parameter(torch.ones(5, 3))
    assert s.squared_norm().tolist() == [3.0] * 5
    holder.p = nn.Parameter(torch.ones(5, 4))
    with pytest.raises(LawError, match=r"shape \(5, 4\), the law was found for \(5, 3\)"):
        s.squared_norm()
    del holder.p
    with pytest.raises(LawError, match="Holder has no parameter 'p'"):
        s.squared_norm()


def test_binds_to_another_model_of_the_same_make():
    s, other = slot((5, 3), 5, 3), Holder(5, 3)
    assert s.bind(other).parameter is other.p
    with pytest.raises(LawError):
        s.bind(Holder(3, 5))
