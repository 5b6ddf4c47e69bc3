import pytest
import torch

from equipoise.errors import BalanceError
from equipoise.init.balance import balance_
from equipoise.init.schemes import initialize_
from equipoise.nn.stack import Stack
from tests.init.helpers import assert_raises_and_unchanged, max_relative_imbalance, seeded, stack
from tests.networks import CLASSES, FEATURES


@pytest.mark.parametrize("beta", [0.5, torch.linspace(0.5, 3.0, 8)])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_beta_sets_the_norm_of_the_first_balanced_layer(beta, direction):
    model = initialize_(stack("gcn"), "bal-x", beta=beta, direction=direction, generator=seeded())
    conv, axis = (model.convs[0], 1) if direction == "forward" else (model.convs[3], 0)
    norms = conv.lin.weight.square().sum(axis)
    torch.testing.assert_close(norms, torch.as_tensor(beta).expand(8))
    assert max_relative_imbalance(model) <= 1e-6


def test_balance_():
    model = stack("gatv2", bias=True)
    assert max_relative_imbalance(model) > 1e-2
    weight = model.convs[1].lin_l.weight.detach().clone()
    assert balance_(model, beta=1.0) is model
    assert max_relative_imbalance(model) <= 1e-6
    ratio = model.convs[1].lin_l.weight / weight
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))  # only columns are scaled


@pytest.mark.parametrize("scheme", ["bal-identity", "bal-llidentity"])
def test_zero_columns(scheme):
    error = assert_raises_and_unchanged(Stack("gcn", [FEATURES, 8, 4, 8, CLASSES]), BalanceError, "norm 0.0", scheme)
    assert "convs.1" in str(error)


def test_zero_rows():
    model = stack("gcn")
    model.convs[0].lin.weight.data[3] = 0.0
    assert_raises_and_unchanged(
        model, BalanceError, r"row 3 of the feature weights(.|\n)*convs.0 \(1 of 8 rows\)", function=balance_
    )
