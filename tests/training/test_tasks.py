"""Training on other tasks than full-batch node classification by accuracy."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import Subset, SubsetRandomSampler
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.loader import DataLoader, NeighborLoader
from torch_geometric.nn import GCNConv, global_mean_pool

from equipoise.errors import ChoiceError, EquipoiseError, ForwardError, TrainingError, TrainingWarning
from equipoise.training import metrics
from equipoise.training.loop import train
from equipoise.training.metrics import accuracy, average_precision, roc_auc
from equipoise.training.recorder import Recorder
from equipoise.training.sources import Loaders
from equipoise.training.task import SPLITS
from tests.training.conftest import CLASSES, FEATURES, NODES
from tests.training.test_loop import naive_loop, plain_network


class GCN(nn.Module):
    """Two layers with any number of outputs."""

    def __init__(self, outputs=CLASSES, squeeze=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.squeeze = GCNConv(FEATURES, 8), GCNConv(8, outputs), squeeze

    def forward(self, x, edge_index):
        scores = self.second(self.first(x, edge_index).relu(), edge_index)
        return scores.squeeze(-1) if self.squeeze else scores


class OnData(GCN):
    def forward(self, data):
        return super().forward(data.x, data.edge_index)


class OnGraphs(GCN):
    def forward(self, x, edge_index, batch=None):
        return global_mean_pool(super().forward(x, edge_index), batch)


def test_model_of_data_equals_model_of_tensors(data):
    expected, model = train(GCN(), data, lr=0.1, epochs=5), OnData()
    history = train(model, data, lr=0.1, epochs=5)
    assert (history.loss, history.test_metric) == (expected.loss, expected.test_metric)


def test_targets_of_shape_n_1_equal_targets_of_shape_n(data):
    expected = train(plain_network(), data, lr=0.1, epochs=5)
    data.y = data.y[:, None]
    history = train(plain_network(), data, lr=0.1, epochs=5)
    assert (history.loss, history.val_metric) == (expected.loss, expected.val_metric)


@pytest.mark.parametrize("squeeze", [False, True])
@pytest.mark.parametrize("dtype", [torch.long, torch.float32, torch.bool])
def test_binary_targets_with_one_output(data, squeeze, dtype):
    data.y = (data.y == 0).to(dtype)
    model = GCN(outputs=1, squeeze=squeeze)
    scores = model(data.x, data.edge_index).view(-1)[data.train_mask]
    expected = F.binary_cross_entropy_with_logits(scores, data.y[data.train_mask].float()).item()
    history = train(model, data, lr=0.5, epochs=10, metric="roc_auc")
    assert history.loss[0] == pytest.approx(expected)
    assert history.metric == "roc_auc"
    assert history.to_dict()["metric"] == "roc_auc"
    assert history.loss[-1] < history.loss[0]
    scores = model(data.x, data.edge_index)
    expected = roc_auc(scores.view(-1)[data.val_mask], data.y[data.val_mask].long())
    assert history.val_metric[-1] == pytest.approx(expected)


def test_multi_label_targets(data):
    data.y = torch.stack([data.y > 0, data.y < 2, data.y == 1], dim=1).float()
    model = GCN()
    history = train(model, data, lr=0.5, epochs=20, metric="average_precision")
    assert history.loss[-1] < history.loss[0]
    scores = model(data.x, data.edge_index)[data.val_mask]
    assert history.val_metric[-1] == pytest.approx(average_precision(scores, data.y[data.val_mask]))


def test_custom_loss_and_metric(data):
    """A weighted loss; the metric of the test is the recall of class 0."""
    weight = torch.tensor([2.0, 1.0, 1.0])

    def weighted(model, data):
        scores = model(data.x, data.edge_index)[data.train_mask]
        return F.cross_entropy(scores, data.y[data.train_mask], weight)

    def recall(scores, targets):
        return (scores.argmax(-1) == 0)[targets == 0].double().mean()

    model, expected = plain_network(), plain_network()
    history = train(model, data, lr=0.1, epochs=10, loss=weighted, metric=recall)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = weighted(expected, data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert history.loss == losses
    assert history.metric == "recall"
    scores = expected(data.x, data.edge_index)
    assert history.test_metric[-1] == pytest.approx(float(recall(scores[data.test_mask], data.y[data.test_mask])))


def test_optimizer_factory_schedule_and_clipping_equal_a_naive_loop(data):
    model, expected = plain_network(), plain_network()
    history = train(
        model,
        data,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
        schedule=lambda optimizer: StepLR(optimizer, 2, gamma=0.5),
        clip=0.05,
        epochs=6,
    )
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.5, momentum=0.9)
    schedule, losses = StepLR(optimizer, 2, gamma=0.5), []
    for _ in range(6):
        optimizer.zero_grad()
        loss = F.cross_entropy(expected(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
        loss.backward()
        nn.utils.clip_grad_norm_(expected.parameters(), 0.05)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert history.loss == losses


@pytest.mark.parametrize("name", ["adamw", "nadam", "radam", "adamax", "rmsprop", "adagrad"])
def test_optimizers_by_name(data, name):
    history = train(plain_network(), data, optimizer=name, lr=0.01, epochs=20)
    assert history.loss[-1] < history.loss[0]


def test_plateau_schedule_follows_the_training_loss(data):
    optimizers = []

    def schedule(optimizer):
        optimizers.append(optimizer)
        return ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)

    train(plain_network(), data, lr=0.1, epochs=4, schedule=schedule)
    assert optimizers[0].param_groups[0]["lr"] < 0.1


def graphs(count=30):
    """Two classes of graphs, by their features."""
    generator = torch.Generator().manual_seed(0)
    return [
        Data(
            x=torch.randn(6, FEATURES, generator=generator) + 2 * (number % 2),
            edge_index=torch.randint(0, 6, (2, 12), generator=generator),
            y=torch.tensor([number % 2]),
        )
        for number in range(count)
    ]


def test_batches_of_graphs():
    loaders = {split: DataLoader(graphs(), batch_size=8) for split in ("train", "val", "test")}
    model = OnGraphs(outputs=2)
    record = Recorder(model, every=1, quantities=("gradient",))
    history = train(model, loaders, lr=0.2, epochs=15, record=record)
    assert history.best_test_metric == 1.0
    assert len(record.recording.epochs) == 15 * 4  # one record per step
    assert not model.training


def test_loss_of_batches_is_the_mean_over_targets():
    model = OnGraphs(outputs=2)
    loaders = {split: DataLoader(graphs(), batch_size=8) for split in ("train", "val", "test")}
    expected = [F.cross_entropy(model(b.x, b.edge_index, b.batch), b.y, reduction="sum").item() for b in loaders["val"]]
    history = train(model, loaders, optimizer=lambda p: torch.optim.SGD(p, lr=0.0), epochs=1)
    assert history.loss[0] == pytest.approx(sum(expected) / 30, rel=1e-5)


def test_batches_of_a_neighbour_loader_count_their_seed_nodes_only(data):
    """Such a batch names its seeds: the first ``batch_size`` nodes."""

    def batch(nodes):
        return Data(x=data.x, edge_index=data.edge_index, y=data.y.clone(), batch_size=nodes, n_id=torch.arange(NODES))

    batches = [batch(5)]
    batches[0].y[5:] = -1  # not known, and not needed
    history = train(GCN(), {"train": batches, "val": batches, "test": batches}, lr=0.1, epochs=2)
    model = GCN()
    expected = F.cross_entropy(model(data.x, data.edge_index)[:5], data.y[:5])
    assert history.loss[0] == pytest.approx(expected.item())


def test_link_prediction_by_edge_labels(data):
    class Links(GCN):
        def forward(self, data):
            h = super().forward(data.x, data.edge_index)
            source, target = data.edge_label_index
            return (h[source] * h[target]).sum(-1)

    negative = torch.randint(0, NODES, (2, 60), generator=torch.Generator().manual_seed(1))
    data.edge_label_index = torch.cat([data.edge_index, negative], dim=1)
    data.edge_label = torch.cat([torch.ones(60), torch.zeros(60)])
    history = train(
        Links(8),
        {split: [data] for split in ("train", "val", "test")},
        optimizer="adam",
        lr=0.01,
        epochs=30,
        metric="roc_auc",
    )
    assert history.loss[-1] < history.loss[0]
    assert history.best_val_metric > 0.6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.y.fill_(CLASSES), "label 3 is out of range for 3 classes"),
        (lambda data: data.y.fill_(-1), "label -1 is negative"),
        (lambda data: setattr(data, "y", data.y.float()), "integers of shape"),
        (lambda data: setattr(data, "y", data.y[:-1]), "train_mask has 40 entries, but there are 39 targets"),
        (lambda data: setattr(data, "y", F.one_hot(data.y, 4)), "one class per row"),
        (lambda data: setattr(data, "y", torch.full((NODES,), float("nan"))), "NaN or infinite"),
        (lambda data: setattr(data, "y", F.one_hot(data.y, CLASSES) * 2), "its target 0 or 1"),
        (lambda data: data.val_mask.fill_(False), "no target in the val set"),
    ],
)
def test_bad_labels_are_named_before_the_first_step(data, change, message):
    change(data)
    model = plain_network()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(TrainingError, match=message):
        train(model, data, lr=0.1, epochs=3)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


class Dataset(InMemoryDataset):
    """Graphs in one storage."""

    def __init__(self, data_list, transform=None):
        super().__init__(transform=transform)
        self.data, self.slices = self.collate(data_list)


LOADERS = {
    "loader": lambda graphs: DataLoader(graphs, batch_size=4, shuffle=True),
    "list": lambda graphs: list(DataLoader(graphs, batch_size=4)),
    "subset": lambda graphs: DataLoader(Subset(graphs, range(len(graphs))), batch_size=4),
    "sampler": lambda graphs: DataLoader(graphs, batch_size=4, sampler=SubsetRandomSampler(range(len(graphs)))),
    "data set": lambda graphs: DataLoader(Dataset(graphs), batch_size=4),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_bad_labels_of_a_loader_are_named_before_the_first_step(kind, split):
    for label, message in ((2, "label 2 is out of range for 2 classes"), (-1, "label -1 is negative")):
        loaders = {name: graphs(12) for name in ("train", "val", "test")}
        loaders[split][11].y = torch.tensor([label])
        model = OnGraphs(outputs=2)
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(TrainingError, match=message) as error:
            train(model, {name: LOADERS[kind](data) for name, data in loaders.items()}, lr=0.1, epochs=2)
        assert f"{split}: targets" in str(error.value)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_graph_with_a_target_too_many_is_named_before_the_first_step():
    loaders = {split: DataLoader(graphs(12), batch_size=4) for split in ("train", "val", "test")}
    loaders["val"].dataset[7].y = torch.tensor([0, 1])
    with pytest.raises(TrainingError, match=r"graph 7 have the shape \(2,\), those of the first graph \(1,\)"):
        train(OnGraphs(outputs=2), loaders, lr=0.1, epochs=1)


def test_labels_of_a_neighbour_loader_are_read_from_its_graph(data):
    data.y[data.val_mask.nonzero()[0]] = -1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without pyg-lib, a neighbour loader can be built but not iterated
        loaders = {
            split: NeighborLoader(data, [2], batch_size=4, input_nodes=data[f"{split}_mask"])
            for split in ("train", "val", "test")
        }
    with pytest.raises(TrainingError, match=r"label -1 is negative(.|\n)*val: targets"):
        train(GCN(), loaders, lr=0.1, epochs=1)


def test_graphs_that_a_batch_sampler_skips_are_not_read():
    data = graphs(12)
    data[11].y = torch.tensor([-1])
    loader = DataLoader(data, batch_sampler=[[0, 1, 2], [3, 4, 5]])
    assert train(OnGraphs(outputs=2), dict.fromkeys(SPLITS, loader), lr=0.1, epochs=1).epochs == 1


def test_reading_labels_draws_no_random_numbers_and_calls_no_transform():
    calls = []

    def transform(graph):
        calls.append(graph)
        return graph

    loaders = {split: DataLoader(Dataset(graphs(12), transform), batch_size=4, shuffle=True) for split in SPLITS}
    model, state = OnGraphs(outputs=2), torch.get_rng_state()
    Loaders(model, loaders, accuracy)
    assert torch.equal(torch.get_rng_state(), state)
    assert not calls


def test_one_hot_classes_are_pointed_out(data):
    data.y = F.one_hot(data.y, CLASSES)
    with pytest.warns(TrainingWarning, match=r"exactly one 1(.|\n)*data\.y\.argmax"):
        train(plain_network(), data, lr=0.1, epochs=1)


def test_labels_outside_the_splits_do_not_matter(data):
    data.y[39] = -1
    assert not any(mask[39] for mask in (data.train_mask, data.val_mask, data.test_mask))
    assert train(plain_network(), data, lr=0.1, epochs=1).epochs == 1


def test_invalid_arguments(data):
    model = plain_network()
    loaders = {"train": [], "val": [data], "test": [data]}
    cases = [
        ({"metric": "auc"}, ChoiceError, "unknown metric 'auc'"),
        ({"metric": 3}, TrainingError, "expected a metric, got int"),
        ({"clip": 0.0}, TrainingError, "clip must be a positive norm"),
        ({"schedule": 3}, TrainingError, "expected a schedule, got int"),
        ({"schedule": lambda _: StepLR(torch.optim.SGD(model.parameters()), 2)}, TrainingError, "another optimizer"),
        ({"loss": lambda model, data: model(data.x, data.edge_index)}, TrainingError, "not a scalar tensor"),
        ({"loss": lambda model: None}, TrainingError, r"loss\(model, data\) failed: TypeError"),
        ({"loss": lambda model, data: torch.tensor(1.0)}, TrainingError, "a tensor without a gradient"),
        ({"metric": lambda scores: 1.0}, TrainingError, r"metric\(scores, targets\) failed: TypeError"),
        ({"metric": lambda scores, targets: scores}, TrainingError, r"scores float32\["),
        ({"metric": lambda scores, targets: None}, TrainingError, "scikit-learn"),
        ({"schedule": StepLR}, TrainingError, "schedule= failed: TypeError"),
        ({"schedule": lambda _: None}, TrainingError, "schedule= returned"),
        ({"clip": "1"}, TrainingError, "clip must be a positive norm, got '1'"),
        ({"clip": True}, TrainingError, "clip must be a positive norm, got True"),
        ({"patience": 1.5}, TrainingError, "patience must be an integer"),
        ({"record": True}, TrainingError, "expected a recorder, got bool"),
        ({"loss": "mse"}, TrainingError, "expected a loss function, got a str"),
        ({"loss": F.cross_entropy}, TrainingError, "failed: TypeError(.|\n)*lambda model, data"),
        ({"metric": lambda scores, targets: (scores == targets).float()}, TrainingError, "failed: RuntimeError"),
        ({"weight_decay": "a"}, TrainingError, "weight decay must be finite and at least 0, got 'a'"),
        ({"stop_loss": "a"}, TrainingError, "stop_loss must be a number, got 'a'"),
        ({"history": "a"}, TrainingError, "expected a history, got str"),
        ({"on_epoch": "a"}, TrainingError, "expected a function for on_epoch, got str"),
        ({"on_gradients": 3}, TrainingError, "expected a function for on_gradients, got int"),
        ({"record": Recorder(plain_network())}, TrainingError, "the recorder belongs to another model"),
    ]
    for settings, error, message in cases:
        with pytest.raises(error, match=message):
            train(model, data, lr=0.1, epochs=1, **settings)
    with pytest.raises(TrainingError, match="expected an optimizer, got int"):
        train(model, data, optimizer=3, epochs=1)
    optimizers = [
        (lambda _: None, "optimizer= returned"),
        (torch.optim.LBFGS, "LBFGS evaluates the loss several times"),
        (torch.optim.SGD(plain_network().parameters(), lr=0.1), "no parameter of this model"),
    ]
    for optimizer, message in optimizers:
        with pytest.raises(TrainingError, match=message):
            train(model, data, optimizer=optimizer, epochs=1)
    for epochs in (0, 2.5, "5"):
        with pytest.raises(TrainingError, match="epochs must be an integer"):
            train(model, data, lr=0.1, epochs=epochs)
    with pytest.raises(TrainingError, match=r"got lr='0\.1'"):
        train(model, data, lr="0.1", epochs=1)
    with pytest.raises(ForwardError, match=r"model\(data\) failed: TypeError"):
        train(nn.Linear(3, 3), data, lr=0.1, epochs=1)
    with pytest.raises(TrainingError, match="the loader train has no batch"):
        train(model, loaders, lr=0.1, epochs=1)
    for wrong, message in ((3, "is of type int"), (data, "is of type Data"), (iter([data]), "is an iterator")):
        with pytest.raises(TrainingError, match=f"the loader val {message}"):
            train(model, {"train": [data], "val": wrong, "test": [data]}, lr=0.1, epochs=1)
    for wrong in ([data], (data, data), DataLoader([data])):
        with pytest.raises(TrainingError, match=r"expected a graph, got a(.|\n)*pass loaders as"):
            train(model, wrong, lr=0.1, epochs=1)
    with pytest.raises(TrainingError, match="there is no loader test"):
        train(model, {"train": [data], "val": [data]}, lr=0.1, epochs=1)
    with pytest.raises(ForwardError, match="returns tuple, not a tensor"):
        train(_Tuple(), data, lr=0.1, epochs=1)


def test_recorder_of_a_module_inside_the_model(data):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = plain_network()

        def forward(self, x, edge_index):
            return self.inner(x, edge_index)

    model = Wrapper()
    record = Recorder(model.inner, every=1)
    train(model, data, lr=0.1, epochs=2, record=record)
    assert "best/features_unchanged" in set(record.frame().quantity)


class _Tuple(GCN):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index), None


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.tensor([0, 2]), "train_mask is int64"),
        ([True] * NODES, "train_mask is a list"),
        (torch.ones(NODES + 3, dtype=torch.bool), rf"train_mask has {NODES + 3} entries and does not fit"),
    ],
)
def test_malformed_masks_of_batches_are_named(data, mask, message):
    loaders = {split: [data] for split in ("train", "val", "test")}
    data.train_mask = mask
    with pytest.raises(TrainingError, match=message):
        train(plain_network(), loaders, lr=0.1, epochs=1)


def test_a_mask_that_is_a_list_and_a_model_without_parameters_are_named(data):
    with pytest.raises(TrainingError, match="cannot train this model"):
        train(nn.Sequential(), {split: [data] for split in ("train", "val", "test")}, lr=0.1, epochs=1)
    data.val_mask = data.val_mask.tolist()
    with pytest.raises(TrainingError, match=r"data\.val_mask is a list"):
        train(plain_network(), data, lr=0.1, epochs=1)


@pytest.mark.parametrize("name", ["x", "y", "val_mask"])
def test_tensors_without_values_are_named(data, name):
    data[name] = data[name].to("meta")
    with pytest.raises(TrainingError, match=rf"data.{name} is on the device meta"):
        train(GCN(), data, lr=0.1, epochs=1)


def test_metrics():
    scores, targets = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
    assert roc_auc(scores, targets) == pytest.approx(0.75)
    assert average_precision(scores, targets) == pytest.approx(0.5 * (1.0 + 2 / 3))
    assert roc_auc(torch.stack([-scores, scores], dim=1), targets) == pytest.approx(0.75)
    assert roc_auc(scores[:, None] * 1e3, targets[:, None]) == pytest.approx(0.75)
    assert roc_auc(torch.eye(3)[targets * 2], targets * 2) == pytest.approx(1.0, abs=0.5)
    assert accuracy(torch.tensor([[1.0, -1.0]]), torch.tensor([[1, 1]])) == 0.5


def test_missing_torchmetrics(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchmetrics", None)
    with pytest.raises(EquipoiseError, match=r"equipoise\[metrics\]"):
        metrics.roc_auc(torch.rand(4), torch.tensor([0, 1, 0, 1]))


def test_full_batch_is_a_single_batch(data):
    expected = naive_loop(plain_network(), data, torch.optim.SGD(plain_network().parameters(), lr=0.1), 1)[0]
    loaders = {split: [data] for split in ("train", "val", "test")}
    assert train(plain_network(), loaders, lr=0.1, epochs=1).loss == expected
