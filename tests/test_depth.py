import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GATv2Conv

from equipoise.depth.check import depth_check, paper_learning_rate, width_check
from equipoise.depth.prediction import class_entropy, predict
from equipoise.errors import ChoiceError, EquipoiseError, ForwardError, ModelError, TrainingError
from equipoise.nn.stack import Stack
from tests.networks import Chain

NODES, FEATURES, CLASSES = 60, 6, 3


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(NODES) % CLASSES
    x = nn.functional.one_hot(y, FEATURES) + 0.3 * torch.rand(NODES, FEATURES, generator=generator)
    source, shift = torch.randint(0, NODES, (2, 200), generator=generator)
    edge_index = torch.stack([source, (source + CLASSES * shift) % NODES])  # neighbours have equal classes
    return Data(x=x, edge_index=edge_index, y=y, train_mask=torch.arange(NODES) < 30)


def build_stack(depth):
    return Stack("gatv2", [FEATURES, *[8] * (depth - 1), CLASSES])


def test_one_result_per_depth_and_scheme(data):
    check = depth_check(build_stack, data, depths=(2, 4), steps=5)
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


def test_verdict_names_the_depth_at_which_training_fails_and_the_cheapest_remedy(data):
    check = depth_check(build_stack, data, depths=(2, 30), schemes=("default", "skip", "bal-o"), steps=30, lr=0.3)
    lines = check.verdict().splitlines()
    assert lines[0] == "As built, depth 2: it can train."
    assert lines[1].startswith("As built, depth 30: it will not train: the loss stops above 90 % of 1.099")
    assert check.verdict() in str(check)
    results = {(result["scheme"], result["depth"]): result["trains"] for result in check.to_dict()["results"]}
    assert results["default", 2]
    assert not results["default", 30]
    trains = [scheme for scheme in ("bal-o", "skip") if results[scheme, 30]]
    assert not trains or f"The cheapest that trains at depth 30: {trains[0]}." in lines


@pytest.mark.parametrize("scheme", ["rebalanced", "skip", "layer-norm"])
def test_remedies_other_than_initialisations(data, scheme):
    as_built, result = depth_check(build_stack, data, depths=(4,), schemes=("default", scheme), steps=12).results
    assert result.note == ""
    assert len(result.losses) == 12
    if scheme == "rebalanced":
        assert result.losses[0] == pytest.approx(as_built.losses[0], rel=1e-5)
        assert result.losses[-1] != as_built.losses[-1]
    else:
        assert result.losses[0] != as_built.losses[0]


def test_a_model_without_laws_cannot_be_rebalanced(data):
    def build(depth):
        return Stack("gatv2", [FEATURES, *[8] * (depth - 1), CLASSES], activation="tanh")

    (result,) = depth_check(build, data, depths=(3,), schemes=("rebalanced",), steps=5).results
    assert "cannot be rebalanced: no law is known" in result.note
    assert result.trains is None


def test_other_optimizers_losses_and_loaders(data):
    names = []

    def loss(model, batch):
        names.append(type(batch).__name__)
        return model(batch.x, batch.edge_index).square().mean()

    (adam,) = depth_check(build_stack, data, depths=(3,), schemes=("bal-o",), steps=20, optimizer="adam").results
    assert adam.lr == 1e-3
    assert adam.losses[-1] < adam.losses[0]
    (own,) = depth_check(build_stack, {"train": [data, data]}, (3,), ("default",), 5, loss=loss, lr=0.1).results
    assert names == ["Data"] * 5
    assert own.entropy is None
    (batches,) = depth_check(build_stack, {"train": [data]}, (3,), ("default",), 5, lr=0.1).results
    (whole,) = depth_check(build_stack, data, (3,), ("default",), 5, lr=0.1).results
    assert batches.losses == whole.losses


def test_width_check(data):
    def build(width):
        return Stack("gatv2", [FEATURES, width, width, CLASSES])

    check = width_check(build, data, widths=(8, 16), schemes=("default",), steps=6)
    assert [result.depth for result in check.results] == [8, 16]
    assert {result.lr for result in check.results} == {0.1}
    assert "As built, width" in check.verdict()
    assert str(check).splitlines()[0].split()[0] == "width"


STEPS = range(50)


@pytest.mark.parametrize(
    ("losses", "updates", "expected"),
    [
        ([1.6 * 0.9**t for t in STEPS], [], "trains"),
        ([1.6, float("nan")], [], "diverges"),
        ([1.6 + 0.01 * t for t in STEPS], [], "rises"),
        ([1.6 - 1e-4 * t for t in STEPS], [], "slow"),  # at constant speed 0.5 takes 5000 steps
        ([1.6 - 1e-3 * (2.72 ** (0.02 * t) - 1) for t in STEPS], [], "trains"),  # leaves the plateau
        ([1.2 + 0.4 * 0.8**t for t in STEPS], [], "plateau"),  # at the entropy of the classes
        ([1.2 + 0.4 * 0.8**t for t in STEPS], [(t, 1e-3) for t in STEPS], "plateau"),
        ([1.2 + 0.4 * 0.8**t for t in STEPS], [(t, 1e-3 * 2.72 ** (0.02 * t)) for t in STEPS], "trains"),
    ],
)
def test_prediction(losses, updates, expected):
    assert predict(losses, updates, entropy=1.2, budget=1000).outlook == expected


def test_prediction_counts_the_steps():
    assert predict([2.0 - 0.01 * t for t in range(20)], [], entropy=1.0, budget=500).steps == pytest.approx(111, abs=2)


def test_class_entropy():
    assert class_entropy(torch.tensor([0, 1, 2, 2])) == pytest.approx(1.0397, abs=1e-4)
    assert class_entropy(torch.tensor([0.0, 1.0])) == pytest.approx(0.6931, abs=1e-4)
    assert class_entropy(torch.tensor([0.3, 1.0])) is None
    assert class_entropy(torch.zeros(3, 2)) is None


def test_stock_pyg_model(data):
    def build(depth):
        return GAT(FEATURES, 8, num_layers=depth, out_channels=CLASSES, v2=True, act="relu", norm="layer_norm")

    check = depth_check(build, data, depths=(3,), schemes=("default",), steps=2)
    assert check.results[0].gradient is not None


def test_model_that_cannot_be_initialised_gets_a_note(data):
    def build(depth):
        return Chain(*(GATv2Conv(FEATURES if n == 0 else 7, CLASSES if n == depth - 1 else 7) for n in range(depth)))

    check = depth_check(build, data, depths=(2,), steps=2)
    default, balanced = check.results
    assert default.gradient > 0
    assert default.imbalance > 0
    assert balanced.gradient is None
    assert "bal-o, 2 layers: this scheme cannot initialise the model" in check.verdict()
    assert "odd" in check.verdict()


def test_time_limit_ends_a_run_early(data):
    (result,) = depth_check(build_stack, data, depths=(2,), schemes=("bal-o",), steps=500, seconds=1e-9).results
    assert len(result.losses) == 1
    assert "reached after 1 of 500 steps" in result.note


def test_divergence_gets_a_note(data):
    (result,) = depth_check(build_stack, data, depths=(3,), schemes=("bal-o",), steps=40, lr=1e12).results
    assert "try a learning rate below" in result.note
    assert 0 < len(result.losses) < 40


def test_same_seed_gives_same_numbers(data):
    first, second = (depth_check(build_stack, data, depths=(3,), steps=3) for _ in range(2))
    assert first.frame().equals(second.frame())


def test_global_random_state_is_restored(data):
    def build(depth):
        return nn.Sequential(nn.Linear(1, 1))  # does not accept these inputs

    torch.manual_seed(7)
    state = torch.get_rng_state()
    depth_check(build_stack, data, depths=(2,), steps=2)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ForwardError):
        depth_check(build, data, depths=(2,), steps=2)
    assert torch.equal(torch.get_rng_state(), state)


def test_numbers_do_not_depend_on_the_global_random_state(data):
    frames = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        frames.append(depth_check(build_stack, data, depths=(2,), schemes=("default",), steps=2).frame())
    assert frames[0].equals(frames[1])


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figure_shows_the_summary(data, tmp_path, suffix):
    check = depth_check(build_stack, data, depths=(2, 3), steps=2, title="a title")
    figure = check.figure(tmp_path / f"depth.{suffix}")
    assert (tmp_path / f"depth.{suffix}").stat().st_size > 1000
    lines = {line.get_label(): line.get_ydata().tolist() for line in figure.axes[0].get_lines()}
    table = check.summary()
    for scheme in ("default", "bal-o"):
        assert lines[scheme] == pytest.approx(table[table.scheme == scheme].gradient.tolist())


def test_default_learning_rates_are_the_papers():
    assert [paper_learning_rate(depth) for depth in (2, 5, 10, 20, 40)] == [0.1, 0.1, 0.05, 0.05, 0.005]
    assert [paper_learning_rate(depth, "texas") for depth in (2, 7, 64)] == [0.05, 0.01, 0.0005]


def test_errors_name_the_mistake(data):
    def broken(depth):
        raise ValueError("no such thing")

    with pytest.raises(ModelError, match=r"build\(2\) failed: ValueError: no such thing"):
        depth_check(broken, data, depths=(2,))
    with pytest.raises(ModelError, match=r"build\(2\) returned an? int, not a model"):
        depth_check(lambda depth: 3, data, depths=(2,))
    with pytest.raises(EquipoiseError, match="did you mean 'gatv2'"):
        depth_check(lambda depth: Stack("gatv3", [2, 2]), data, depths=(2,))
    with pytest.raises(ForwardError, match="cannot classify the nodes"):
        depth_check(lambda depth: nn.Linear(FEATURES, CLASSES), data, depths=(2,))
    with pytest.raises(ChoiceError, match="did you mean 'bal-o'"):
        depth_check(build_stack, data, schemes=("bal-oo",))
    with pytest.raises(TrainingError, match="at least one size"):
        depth_check(build_stack, data, depths=())
    with pytest.raises(TrainingError, match="must be positive"):
        depth_check(build_stack, data, steps=0)
    with pytest.raises(TrainingError, match="the data have no y"):
        depth_check(build_stack, Data(x=data.x, edge_index=data.edge_index))


def test_malformed_data_are_named(data):
    with pytest.raises(TrainingError, match="the loader train has no batch"):
        depth_check(build_stack, {"train": []}, depths=(2,), steps=1)
    long = data.clone()
    long.train_mask = torch.ones(NODES + 5, dtype=torch.bool)
    with pytest.raises(TrainingError, match="train_mask does not fit"):
        depth_check(build_stack, {"train": [long]}, depths=(2,), steps=1)
    data.x = data.x[:, 0]
    with pytest.raises(TrainingError, match=r"data\.x is float32\[60\]"):
        depth_check(build_stack, data, depths=(2,), steps=1)
