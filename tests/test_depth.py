import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, TransformerConv

from equipoise.depth import depth_check, paper_rate
from equipoise.errors import ChoiceError, EquipoiseError, ForwardError, ModelError, TrainingError
from equipoise.nn.stack import Stack
from tests.networks import Chain

NODES, FEATURES, CLASSES = 60, 6, 3


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(NODES, FEATURES, generator=generator)
    edge_index = torch.randint(0, NODES, (2, 200), generator=generator)
    return Data(x=x, edge_index=edge_index, y=torch.arange(NODES) % CLASSES, train_mask=torch.arange(NODES) < 30)


def stack(depth):
    return Stack("gatv2", [FEATURES, *[8] * (depth - 1), CLASSES])


def test_a_cell_for_every_depth_and_start(data):
    check = depth_check(stack, data, depths=(2, 4), steps=5)
    table = check.summary()
    assert table[["depth", "scheme", "steps"]].to_numpy().tolist() == [
        [2, "default", 5],
        [2, "bal-o", 5],
        [4, "default", 5],
        [4, "bal-o", 5],
    ]
    balanced = table[table.scheme == "bal-o"]
    assert balanced.imbalance.max() < 1e-6
    assert table[table.scheme == "default"].imbalance.min() > 0.1
    assert (table.gradient > 0).all()
    frame = check.frame()
    assert set(frame.columns) == {"depth", "scheme", "epoch", "quantity", "layer", "value"}
    assert frame[frame.depth == 4].layer.max() == 4


def test_depth_stops_what_is_out_of_balance_and_the_verdict_says_so(data):
    check = depth_check(stack, data, depths=(2, 30), steps=3, lr=0.05)
    assert "As built, from 30 layers on the first layer's relative gradient is at most" in check.verdict()
    assert "It will not train." in check.verdict()
    assert "With bal-o, the first layer's relative gradient is at least" in check.verdict()
    assert check.verdict() in str(check)
    assert [cell["trains"] for cell in check.to_dict()["cells"]] == [True, True, False, True]


def test_a_stock_model_of_pyg(data):
    def build(depth):
        return GAT(FEATURES, 8, num_layers=depth, out_channels=CLASSES, v2=True, act="relu", norm="layer_norm")

    check = depth_check(build, data, depths=(3,), schemes=("default",), steps=2)
    assert check.cells[0].gradient is not None


def test_a_model_without_a_known_start_is_reported(data):
    def build(depth):
        return Chain(
            *(TransformerConv(FEATURES if n == 0 else 8, CLASSES if n == depth - 1 else 8) for n in range(depth))
        )

    check = depth_check(build, data, depths=(2,), steps=2)
    default, balanced = check.cells
    assert default.gradient > 0
    assert default.imbalance > 0
    assert balanced.gradient is None
    assert "nobody has said what a TransformerConv is made of" in check.verdict()


def test_time_is_bounded_and_that_is_said(data):
    (cell,) = depth_check(stack, data, depths=(2,), schemes=("bal-o",), steps=500, seconds=1e-9).cells
    assert len(cell.losses) == 1
    assert "out of time after 1 of 500 steps" in cell.note


def test_divergence_is_reported(data):
    (cell,) = depth_check(stack, data, depths=(3,), schemes=("bal-o",), steps=40, lr=1e12).cells
    assert "try a rate below" in cell.note
    assert 0 < len(cell.losses) < 40


def test_the_same_seed_gives_the_same_numbers(data):
    first, second = (depth_check(stack, data, depths=(3,), steps=3) for _ in range(2))
    assert first.frame().equals(second.frame())


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_figure(data, tmp_path, ending):
    check = depth_check(stack, data, depths=(2, 3), steps=2, title="a title")
    figure = check.figure(tmp_path / f"depth.{ending}")
    assert (tmp_path / f"depth.{ending}").stat().st_size > 1000
    gradients = figure.axes[0]
    drawn = {line.get_label(): line.get_ydata().tolist() for line in gradients.get_lines()}
    table = check.summary()
    for scheme in ("default", "bal-o"):
        assert drawn[scheme] == pytest.approx(table[table.scheme == scheme].gradient.tolist())


def test_rates_are_the_papers():
    assert [paper_rate(depth) for depth in (2, 5, 10, 20, 40)] == [0.1, 0.1, 0.05, 0.05, 0.005]


def test_mistakes_are_named(data):
    def broken(depth):
        raise ValueError("no such thing")

    with pytest.raises(ModelError, match=r"build\(2\) failed: ValueError: no such thing"):
        depth_check(broken, data, depths=(2,))
    with pytest.raises(ModelError, match=r"build\(2\) returned a int, not a model"):
        depth_check(lambda depth: 3, data, depths=(2,))
    with pytest.raises(EquipoiseError, match="did you mean 'gatv2'"):
        depth_check(lambda depth: Stack("gatv3", [2, 2]), data, depths=(2,))
    with pytest.raises(ForwardError, match="does not classify these nodes"):
        depth_check(lambda depth: nn.Linear(FEATURES, CLASSES), data, depths=(2,))
    with pytest.raises(ChoiceError, match="did you mean 'bal-o'"):
        depth_check(stack, data, schemes=("bal-oo",))
    with pytest.raises(TrainingError, match="at least one depth"):
        depth_check(stack, data, depths=())
    with pytest.raises(TrainingError, match="above 0"):
        depth_check(stack, data, steps=0)
    with pytest.raises(TrainingError, match="the data have no y"):
        depth_check(stack, Data(x=data.x, edge_index=data.edge_index))
