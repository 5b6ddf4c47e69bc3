import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT, GATv2Conv, global_mean_pool

from equipoise.data.catalog import CATALOG
from equipoise.data.load import load_dataset
from equipoise.depth.check import depth_check, width_check
from equipoise.depth.prediction import class_entropy, predict
from equipoise.depth.remedies import remedy_cost
from equipoise.depth.short_run import default_learning_rate
from equipoise.errors import ChoiceError, EquipoiseError, ForwardError, ModelError, TrainingError
from equipoise.init.schemes import initialize_
from equipoise.nn.stack import Stack
from equipoise.training.loop import train
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


class OnData(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.network = build_stack(depth)

    def forward(self, data):
        return self.network(data.x, data.edge_index)


class OnGraphs(nn.Module):
    """``batch`` is required: the model does not run on features and edges alone."""

    def __init__(self, depth):
        super().__init__()
        self.network, self.out = build_stack(depth), nn.Linear(CLASSES, CLASSES)

    def forward(self, x, edge_index, batch):
        return self.out(global_mean_pool(self.network(x, edge_index).relu(), batch))


def test_any_model_of_data_or_batches_can_be_rebalanced(data):
    graphs = [Data(x=data.x, edge_index=data.edge_index, y=torch.tensor([number % CLASSES])) for number in range(6)]
    for build, source in (
        (OnData, data),
        (OnData, {"train": [data]}),
        (build_stack, {"train": [data]}),
        (OnGraphs, {"train": DataLoader(graphs, batch_size=3, shuffle=True)}),
    ):
        as_built, result = depth_check(build, source, (3,), ("default", "rebalanced"), 12, lr=0.1).results
        assert result.note == ""
        assert as_built.imbalance > 0.01
        assert result.imbalance < 1e-5
        assert result.losses[0] == pytest.approx(as_built.losses[0], rel=1e-4)


def test_a_single_initialisation_is_cheaper_than_rebalancing():
    names = ["layer-norm", "skip", "rebalanced", "bal-o", "default"]
    assert sorted(names, key=remedy_cost) == names[::-1]


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
    assert len(own.losses) == 5
    assert set(names) == {"Data"}
    assert own.entropy is None
    (batches,) = depth_check(build_stack, {"train": [data]}, (3,), ("default",), 5, lr=0.1).results
    (whole,) = depth_check(build_stack, data, (3,), ("default",), 5, lr=0.1).results
    assert batches.losses == whole.losses


def test_width_check(data):
    def build(width):
        return Stack("gatv2", [FEATURES, width, width, CLASSES])

    check = width_check(build, data, widths=(8, 16), schemes=("default",), steps=6)
    assert check.summary()["width"].tolist() == [8, 16]
    assert "depth" not in check.summary().columns
    assert set(check.frame()["width"]) == {8, 16}
    assert check.figure().axes[0].get_xlabel() == "width"
    assert check.summary()["distance"].notna().all()  # of the last hidden layer, whatever the width
    assert {result.lr for result in check.results} == {0.1}
    assert "As built, width" in check.verdict()
    assert str(check).splitlines()[0].split()[0] == "width"


def test_metric_of_the_training_set(data):
    for source in (data, {"train": [data]}):
        (result,) = depth_check(build_stack, source, (2,), ("bal-o",), 40, lr=0.3, metric="accuracy").results
        assert result.metric > 0.9
    calls = []

    def metric(scores, targets):
        calls.append((scores.shape, targets.shape))
        return 0.25

    check = depth_check(build_stack, data, (2,), ("bal-o",), 2, metric=metric)
    assert calls == [((30, CLASSES), (30,))]
    assert check.summary()["metric"].tolist() == [0.25]
    assert "0.250" in str(check)
    with pytest.raises(ChoiceError, match="accuracy"):
        depth_check(build_stack, data, (2,), metric="acuracy")


def test_schedule_and_clipping_are_those_of_train(data):
    data.val_mask = data.test_mask = ~data.train_mask
    rates = []

    def schedule(optimizer):
        rates.append(optimizer)
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    (result,) = depth_check(build_stack, data, (3,), ("bal-o",), 8, lr=0.5, schedule=schedule, clip=0.1).results
    assert rates[0].param_groups[0]["lr"] == pytest.approx(0.5 / 2**3)  # of the eighth step
    model = initialize_(build_stack(3), "bal-o", generator=torch.Generator().manual_seed(0))
    history = train(model, data, lr=0.5, epochs=8, schedule=schedule, clip=0.1, sparse_features=False)
    assert result.losses == pytest.approx(history.loss, rel=1e-5)
    (free,) = depth_check(build_stack, data, (3,), ("bal-o",), 8, lr=0.5).results
    assert free.losses[-1] < result.losses[-1]
    with pytest.raises(TrainingError, match="clip must be a positive norm"):
        depth_check(build_stack, data, (3,), clip=0.0)


def test_schedule_advances_once_per_pass_over_the_loader(data):
    optimizers = []

    def schedule(optimizer):
        optimizers.append(optimizer)
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    depth_check(build_stack, {"train": [data, data, data]}, (3,), ("default",), 7, lr=1.0, schedule=schedule)
    assert optimizers[0].param_groups[0]["lr"] == 0.25


def test_network_on_a_plateau_is_followed_beyond_the_checked_steps(data):
    # Small weights: a plateau. The network leaves it long after the checked steps.
    def build(depth):
        torch.manual_seed(0)
        model = initialize_(build_stack(depth), "bal-o", generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.35)
        return model

    data.val_mask = data.test_mask = ~data.train_mask
    (result,) = depth_check(build, data, (5,), ("default",), 30, lr=0.05, epochs=1000).results
    assert result.losses[-1] > 0.99 * result.losses[0]
    history = train(build(5), data, lr=0.05, epochs=1000, stop_loss=0.9 * result.entropy)
    assert history.outcome == "converged"
    assert result.prediction.outlook == "trains"
    assert history.epochs / 1.5 < result.prediction.steps < 1.5 * history.epochs
    (short,) = depth_check(build, data, (5,), ("default",), 30, lr=0.05, epochs=history.epochs // 2).results
    assert short.prediction.outlook in ("slow", "plateau")


def test_loss_that_stops_at_the_entropy_of_the_classes_does_not_train(data):
    # No feature tells the classes apart: all that can be learned is their frequencies.
    noise = Data(x=torch.ones(NODES, FEATURES), edge_index=data.edge_index, y=(torch.arange(NODES) % 5 == 0).long())
    for depth in (2, 10):
        (result,) = depth_check(build_stack, noise, (depth,), ("bal-o",), 30, lr=0.3).results
        assert result.losses[-1] < result.losses[0]
        assert result.prediction.outlook in ("slow", "plateau")


def test_loss_that_rises_does_not_train(data):
    def build(depth):
        return Stack("gatv2", [FEATURES, *[8] * (depth - 1), CLASSES], activation="elu")

    (result,) = depth_check(build, data, (3,), ("xav",), 20, optimizer=_Ascent).results
    assert result.losses[-1] > result.losses[0]
    assert result.prediction.outlook == "rises"


class _Ascent(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.005, maximize=True)


@pytest.mark.parametrize("lr", [1e12, 1e30])
def test_nan_does_not_train(data, lr):
    check = depth_check(build_stack, data, depths=(3,), steps=10, lr=lr)
    assert {result.prediction.outlook for result in check.results} == {"diverges"}
    assert "can train" not in check.verdict()


def test_metric_of_a_run_that_diverged_is_not_measured(data):
    (result,) = depth_check(build_stack, data, (3,), ("bal-o",), 10, lr=1e30, metric="accuracy").results
    assert result.diverged
    assert result.metric is None


def test_loss_that_rises_at_first_is_followed():
    """ELU with a looks-linear initialisation: the first steps multiply the loss, the next ones reduce it."""
    citation = load_dataset("synthetic-citation")

    def build(depth):
        return Stack("gatv2", [citation.num_features, *[64] * (depth - 1), citation.classes], activation="elu")

    with pytest.warns(UserWarning, match="no ReLU"):
        (result,) = depth_check(build, citation, (10,), ("bal-o",), 6, seconds=60).results
    assert min(result.losses[-2:]) > 1.1 * result.losses[0]
    assert result.prediction.outlook == "trains"


def test_optimizer_state_and_learning_rate_survive_long_steps(data):
    optimizers = []

    def factory(parameters):
        optimizers.append(torch.optim.Adam(parameters, lr=1e-5))
        return optimizers[-1]

    (result,) = depth_check(build_stack, data, (3,), ("bal-o",), 10, optimizer=factory).results
    assert len(result.flow) > 5
    assert optimizers[0].param_groups[0]["lr"] == 1e-5
    times = [time for time, _ in result.flow]
    assert times == sorted(times)
    assert times[-1] > 40


STEPS = range(50)


@pytest.mark.parametrize(
    ("losses", "flow", "expected"),
    [
        ([1.6 * 0.9**t for t in STEPS], [], "trains"),
        ([1.6, float("nan")], [], "diverges"),
        ([1.6] * 50, [(60, 1.5), (80, float("inf"))], "diverges"),
        ([1.6 + 0.01 * t for t in STEPS], [], "rises"),
        ([1.6 + 0.01 * t for t in STEPS], [(t, 1.6 + 0.01 * t) for t in range(51, 99)], "rises"),
        ([1.6 + 0.01 * t for t in STEPS], [(51, 5.0), (52, 3.0), (53, 1.0)], "trains"),  # rises at first, then falls
        ([1.6 - 1e-4 * t for t in STEPS], [], "slow"),  # at constant speed 0.5 takes 5000 steps
        ([1.6 - 1e-3 * (2.72 ** (0.02 * t) - 1) for t in STEPS], [], "slow"),  # leaves the plateau
        ([1.2 + 0.4 * 0.8**t for t in STEPS], [], "slow"),  # at the entropy of the classes, but followed for 5 % only
        ([1.2 + 0.4 * 0.8**t for t in STEPS], [(t, 1.2) for t in range(60, 900, 60)], "plateau"),
        ([1.6] * 50, [(t, 1.11 + 60 / t) for t in range(200, 1000, 20)], "slow"),  # slows down, but still moves
        ([1.6 - 1e-9 * t for t in STEPS], [(t, 1.6) for t in range(60, 900, 60)], "plateau"),
        ([1.6 - 1e-9 * t for t in STEPS], [(t, 1.6 - 1e-3 * 2.72 ** (t / 200)) for t in range(60, 999, 60)], "slow"),
        ([1.6 - 1e-9 * t for t in STEPS], [(t, 1.6 - 1e-3 * t) for t in range(60, 900, 60)], "trains"),
    ],
)
def test_prediction(losses, flow, expected):
    assert predict(losses, flow, entropy=1.2, budget=1000).outlook == expected


def test_noise_does_not_hide_a_trend():
    """At the edge of stability the flow cannot take longer steps, and the last points alone show nothing."""
    generator = np.random.default_rng(0)
    falling = [1.6 - 1e-3 * t + 0.02 * generator.standard_normal() for t in range(1, 250)]
    losses, flow = falling[:50], list(enumerate(falling[50:], start=51))
    prediction = predict(losses, flow, entropy=1.2, budget=2000)
    assert prediction.outlook == "trains"
    assert prediction.steps == pytest.approx(520, rel=0.3)
    level = [(time, 1.6 + loss - (1.6 - 1e-3 * time)) for time, loss in flow]
    assert predict([1.6] * 50, level, entropy=1.2, budget=2000).outlook in ("slow", "plateau")


def test_prediction_counts_the_steps():
    noisy = [1.6, 0.7] * 23 + [1.2] * 4  # its line is below the goal before its end
    assert predict(noisy, [], entropy=1.2, budget=1000).steps in (None, *range(50, 1001))
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


def test_default_learning_rates_are_those_of_the_experiments():
    assert [default_learning_rate(depth) for depth in (2, 5, 10, 20, 40)] == [0.1, 0.1, 0.05, 0.05, 0.005]
    assert [default_learning_rate(depth, "texas") for depth in (2, 7, 64)] == [0.05, 0.01, 0.0005]
    assert [default_learning_rate(depth, "minesweeper") for depth in (2, 10, 64)] == [0.05, 0.01, 0.0005]
    assert [default_learning_rate(depth, "tolokers") for depth in (2, 10, 20)] == [0.05, 0.01, 0.005]
    assert default_learning_rate(10, "unknown") == default_learning_rate(10)


@pytest.mark.parametrize("name", [name for name in CATALOG if name != "synthetic-citation"])
def test_every_data_set_has_a_learning_rate_of_its_own(name):
    assert default_learning_rate(10, name) == (0.05 if name in ("cora", "citeseer", "pubmed") else 0.01)


def test_errors_name_the_mistake(data):
    def broken(depth):
        raise ValueError("no such thing")

    with pytest.raises(ModelError, match=r"build\(2\) failed: ValueError: no such thing"):
        depth_check(broken, data, depths=(2,))
    with pytest.raises(ModelError, match=r"build\(2\) returned an? int, not a model"):
        depth_check(lambda depth: 3, data, depths=(2,))
    with pytest.raises(EquipoiseError, match="did you mean 'gatv2'"):
        depth_check(lambda depth: Stack("gatv3", [2, 2]), data, depths=(2,))
    with pytest.raises(ForwardError, match=r"model\(data\) failed: TypeError"):
        depth_check(lambda depth: nn.Linear(FEATURES, CLASSES), data, depths=(2,))
    with pytest.raises(ChoiceError, match="did you mean 'bal-o'"):
        depth_check(build_stack, data, schemes=("bal-oo",))
    with pytest.raises(TrainingError, match="at least one depth"):
        depth_check(build_stack, data, depths=())
    for depths in ((0,), ("5",), (2.5,)):
        with pytest.raises(TrainingError, match="an integer of 1 or more"):
            depth_check(build_stack, data, depths=depths)
    for settings in ({"depths": 5}, {"schemes": "bal-o"}):
        with pytest.raises(TrainingError, match=f"{next(iter(settings))} must be a list"):
            depth_check(build_stack, data, **settings)
    with pytest.raises(TrainingError, match=r"widths must be a list, got 5(.|\n)*pass widths="):
        width_check(build_stack, data, widths=5)
    with pytest.raises(ModelError, match=r"build is a Stack, not a function(.|\n)*lambda depth"):
        depth_check(build_stack(2), data, depths=(2,))
    with pytest.raises(TrainingError, match="every depth has a model of its own"):
        depth_check(build_stack, data, depths=(2,), optimizer=torch.optim.SGD(build_stack(2).parameters(), lr=0.1))
    with pytest.raises(TrainingError, match="expected a loss function"):
        depth_check(build_stack, data, depths=(2,), loss="mse")
    with pytest.raises(TrainingError, match="seed must be an integer"):
        depth_check(build_stack, data, depths=(2,), seed="a")
    for wrong in ("cora", [data], DataLoader([data])):
        with pytest.raises(TrainingError, match=r"the data have no x(.|\n)*or loaders of batches as"):
            depth_check(build_stack, wrong, depths=(2,))
    for settings in ({"steps": 0}, {"steps": 2.5}, {"epochs": "5"}, {"seconds": -1}, {"seconds": "a"}):
        with pytest.raises(TrainingError, match="steps and epochs must be integers"):
            depth_check(build_stack, data, **settings)
    with pytest.raises(TrainingError, match="the data have no y"):
        depth_check(build_stack, Data(x=data.x, edge_index=data.edge_index))


def test_malformed_data_are_named(data):
    negative = data.clone()
    negative.y = data.y - 1
    with pytest.raises(TrainingError, match="the label -1 is negative"):
        depth_check(build_stack, negative, depths=(2,), steps=1)
    with pytest.raises(TrainingError, match="there is no loader train"):
        depth_check(build_stack, {"val": [data]}, depths=(2,), steps=1)
    with pytest.raises(TrainingError, match="the loader train has no batch"):
        depth_check(build_stack, {"train": []}, depths=(2,), steps=1)
    long = data.clone()
    long.train_mask = torch.ones(NODES + 5, dtype=torch.bool)
    with pytest.raises(TrainingError, match=f"train_mask has {NODES + 5} entries and does not fit"):
        depth_check(build_stack, {"train": [long]}, depths=(2,), steps=1)
    data.x = data.x[:, 0]
    with pytest.raises(TrainingError, match=r"data\.x is float32\[60\]"):
        depth_check(build_stack, data, depths=(2,), steps=1)


def test_a_model_that_build_returns_twice_is_refused():
    data = load_dataset("synthetic-citation")
    model = Stack("gatv2", [500, 8, 7])
    with pytest.raises(ModelError, match="parameters of an earlier one"):
        depth_check(lambda depth: model, data, (2,), ("default", "bal-o"), steps=1)


def test_depths_may_be_an_array_and_a_figure_needs_a_file(tmp_path):
    data = load_dataset("synthetic-citation")
    check = depth_check(
        lambda depth: Stack("gatv2", [500, *[8] * (depth - 1), 7]), data, np.array([2, 3]), ("xav",), steps=1
    )
    assert [result.size for result in check.results] == [2, 3]
    with pytest.raises(EquipoiseError, match="needs a file, not a folder"):
        check.figure(tmp_path)
