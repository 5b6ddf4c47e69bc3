import math

import pytest
import torch
from torch import nn

from equipoise.train.quantities import relative_change, relative_gradient_norm, share_moved


def test_relative_gradient_norm_is_of_all_parameters_together():
    a, b = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))
    (3 * a).pow(2).sum().backward()
    expected = a.grad.norm() / torch.cat([a.detach().flatten(), b.detach()]).norm()
    assert relative_gradient_norm([a, b]) == pytest.approx(float(expected))


def test_relative_gradient_norm_at_zero():
    zero = nn.Parameter(torch.zeros(3))
    assert relative_gradient_norm([zero]) == 0.0
    zero.sum().backward()
    assert math.isinf(relative_gradient_norm([zero]))


def test_insignificant_weights_do_not_count():
    now, start = torch.tensor([1.0, 1.0, 5e-5, -2.0]), torch.tensor([1.0, 0.5, 1.0, -1.0])
    assert relative_change(now, start).tolist() == [0.0, 0.5, 0.5]
    assert share_moved([now], [start]) == pytest.approx(2 / 3)
    assert share_moved([now], [start], moved=0.6) == 0.0
    assert share_moved([torch.zeros(3)], [torch.ones(3)]) == 0.0
