"""Training on parts, in groups of two, three and four processes, against training in one process."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT, GCNConv
from torch_geometric.utils import to_undirected

import equipoise as eq
from equipoise.distributed.graph import DistributedGraph
from equipoise.errors import DistributedError, EquipoiseError, TrainingError
from equipoise.nn.stack import KINDS
from equipoise.training.loop import train
from tests.distributed.ranks import run_ranks
from tests.distributed.splitting import owners, random_graph, split
from tests.real_data import require

EPOCHS = 50


def stack(kind="gatv2", dtype=torch.float64, features=6, classes=3, layers=3, **options):
    widths = [features, *[8] * (layers - 1), classes]
    model = eq.Stack(kind, widths, **options)
    return eq.initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0)).to(dtype)


def seeded(build, *arguments, **options):
    torch.manual_seed(0)
    return build(*arguments, **options)


def squared_loss(model, data):
    """A share of the loss: the sum over own nodes."""
    return 1e-2 * model(data.x, data.edge_index).pow(2).sum()


class WeightedGCN(nn.Module):
    """A model of the whole graph that reads ``edge_attr``."""

    def __init__(self):
        super().__init__()
        self.conv = eq.fuse_(GCNConv(6, 3)).double()

    def forward(self, data):
        return self.conv(data.x, data.edge_index, data.edge_attr)


RUNS = {
    **{kind: (lambda kind=kind: stack(kind), {}) for kind in KINDS},
    "adam": (lambda: stack(skip="linear", bias=True, layers=6), {"optimizer": "adam", "lr": 0.01, "clip": 1.0}),
    "recompute": (lambda: stack(layers=6, recompute=True), {}),
    "layer norm": (lambda: stack("gcn", norm="layer", jk="cat", skip="identity"), {"rebalance": None}),
    "PyG model": (lambda: eq.fuse_(seeded(GAT, 6, 8, 3, 3, v2=True).double()), {}),
    "rank metric": (stack, {"metric": lambda scores, targets: float(scores.softmax(-1).amax(-1).mean())}),
    "dropout": (lambda: seeded(stack, dropout=0.3), {}),
    "edge weights": (lambda: seeded(WeightedGCN), {}),
    "own loss": (stack, {"loss": squared_loss}),
}


def run(name, data):
    build, options = RUNS[name]
    return train(build(), data, **({"lr": 0.1, "epochs": EPOCHS if name == "gatv2" else 6, "stop_loss": 0.0} | options))


def curves(history):
    return history.loss, history.val_accuracy, history.test_accuracy


def train_on_rank(rank, world_size):
    data = random_graph()
    parts = split(data, owners(data, world_size, "random"), world_size)
    part = parts[rank]
    results = {name: curves(run(name, part)) for name in RUNS}
    results["empty part"] = curves(run("gatv2", split(data, owners(data, world_size, "empty part"), world_size)[rank]))
    first, second = (run("dropout", part) for _ in range(2))
    results["dropout"] = curves(first), curves(second), first.best_state
    results["laws"] = largest_residual(part)
    results["own loop"] = own_loop(part, data), ddp_loop(part, data)
    results["errors"] = errors(part, world_size)
    return results


def largest_residual(part):
    """The largest residual δ of the laws relative to the terms that cancel, on summed gradients."""
    data, model = random_graph(), stack(layers=4)
    laws = eq.discover(model, data.x, data.edge_index)
    found = []

    def measure(epoch, history):
        scale = max(float((p * p.grad).abs().sum()) for p in model.parameters())
        found.append(max(float(delta.abs().max()) for delta in eq.residual(laws)) / scale)

    train(model, part, lr=0.1, epochs=3, on_gradients=measure)
    return max(found)


def own_loop(part, data):
    """A loop of the user's with one call that sums gradients; returns the weights."""
    model, graph = stack(), DistributedGraph(part)
    optimizer, count = torch.optim.SGD(model.parameters(), lr=0.1), int(data.train_mask.sum())
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            model(part.x, graph)[part.train_mask], part.y[part.train_mask], reduction="sum"
        )
        eq.sum_over_ranks(loss / count).backward()
        eq.sum_gradients(model)
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def ddp_loop(part, data):
    """The same with torch's DistributedDataParallel, which divides the sum of gradients by the number of ranks."""
    graph = DistributedGraph(part)
    model = nn.parallel.DistributedDataParallel(stack())
    optimizer, count = torch.optim.SGD(model.parameters(), lr=0.1), int(data.train_mask.sum())
    for _ in range(3):
        optimizer.zero_grad()
        out = model(part.x, graph)[part.train_mask]
        loss = nn.functional.cross_entropy(out, part.y[part.train_mask], reduction="sum")
        (loss / count * part.parts).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def errors(part, world_size):
    def message(call):
        with pytest.raises(EquipoiseError) as error:
            call()
        return f"{type(error.value).__name__}: {error.value}"

    invalid = replace(part, y=part.y + (5 if part.rank == 1 else 0))
    other = replace(part, manifest=replace(part.manifest, fingerprint=f"of rank {part.rank}"))
    data = random_graph()
    del data.edge_attr
    data.edge_index = to_undirected(data.edge_index)
    symmetric = split(data, owners(data, world_size, "random"), world_size)[part.rank]
    differently = stack()
    with torch.no_grad():
        differently.convs[0].att += part.rank
    return {
        "label": message(lambda: train(stack(), invalid, lr=0.1, epochs=1)),
        "fingerprint": message(lambda: train(stack(), other, lr=0.1)),
        "weights": message(lambda: train(differently, part, lr=0.1)),
        "learning rate": message(lambda: train(stack(), part, lr=0.1 + part.rank, epochs=3)),
        "types": message(lambda: train(stack(dtype=torch.float32), part, lr=0.1)),
        "types, fused": message(lambda: stack(dtype=torch.float32)(part.x, DistributedGraph(symmetric))),
        "no part": message(lambda: DistributedGraph("parts")),
        "timeout": [message(lambda t=t: train(stack(), part, lr=0.1, timeout=t)) for t in (0, -1, "60", math.nan)],
        "size": message(lambda: DistributedGraph(replace(part, parts=world_size + 1))),
        "rank": message(lambda: DistributedGraph(replace(part, rank=part.rank + 1))),
        "batch norm": message(lambda: train(stack("gcn", norm="batch"), part, lr=0.1)),
        "stock layer": message(lambda: train(GAT(6, 8, 2, 3, v2=True), part, lr=0.1)),
        "no training nodes": message(
            lambda: train(stack(), replace(part, train_mask=torch.zeros_like(part.train_mask)), lr=0.1)
        ),
    }


@pytest.fixture(scope="module", params=[2, *(pytest.param(size, marks=pytest.mark.slow) for size in (3, 4))])
def ranks(request):
    return run_ranks(request.param, train_on_rank)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "dropout"])
def test_curves_equal_one_process(ranks, name):
    expected = curves(run(name, random_graph()))
    for result in ranks:
        assert result[name] == ranks[0][name]
    torch.testing.assert_close(torch.tensor(ranks[0][name][0]), torch.tensor(expected[0]), rtol=1e-12, atol=0)
    if name != "rank metric":
        assert ranks[0][name][1:] == expected[1:]
    torch.testing.assert_close(torch.tensor(ranks[0][name][1]), torch.tensor(expected[1]))


def test_a_part_may_be_empty(ranks):
    torch.testing.assert_close(
        torch.tensor(ranks[0]["empty part"][0]), torch.tensor(ranks[0]["gatv2"][0]), rtol=1e-12, atol=0
    )


def test_runs_are_reproducible_and_equal_on_all_ranks(ranks):
    first, second, state = ranks[0]["dropout"]
    assert first == second
    for result in ranks:
        assert result["dropout"][0] == first
        assert all(torch.equal(value, state[name]) for name, value in result["dropout"][2].items())


def test_laws_hold_on_summed_gradients(ranks):
    assert all(result["laws"] < 1e-13 for result in ranks)


def test_own_loop_and_ddp_equal_one_process(ranks):
    data, model = random_graph(), stack()
    train(model, data, lr=0.1, epochs=3)
    for result in ranks:
        for parameters in result["own loop"]:
            torch.testing.assert_close(parameters, [p.detach() for p in model.parameters()], rtol=1e-10, atol=1e-12)


def test_mistakes_are_errors_on_every_rank(ranks):
    for rank, result in enumerate(ranks):
        found = result["errors"]
        expected = "TrainingError: the label" if rank == 1 else "DistributedError: rank 1 failed: the label"
        assert found["label"].startswith(expected)
        assert "come from different partitions" in found["fingerprint"]
        assert "the weights of rank 1 differ from those of rank 0" in found["weights"]
        assert "the weights of rank 1 differ from those of rank 0 after a step" in found["learning rate"]
        for name in ("types", "types, fused"):
            assert found[name].startswith("GraphError: FusedGATv2Conv: x is of torch.float64, the weights are of")
        assert "expected a part of a graph, got a str" in found["no part"]
        assert all("is not a number of seconds above 0" in text for text in found["timeout"])
        assert f"has {len(ranks) + 1} parts, but {len(ranks)} processes" in found["size"]
        assert f"this process has rank {rank}, but its part is that of rank {rank + 1}" in found["rank"]
        assert "statistics over all nodes" in found["batch norm"]
        assert "fuse_(model)" in found["stock layer"]
        assert "no target in the train set" in found["no training nodes"]


def test_several_parts_need_torchrun(monkeypatch):
    data = random_graph()
    part = split(data, owners(data, 2, "random"), 2)[0]
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(DistributedError, match="this one was started alone"):
        train(stack(), part, lr=0.1)


def test_recorder_is_refused():
    data, model = random_graph(), stack()
    part = split(data, torch.zeros(data.num_nodes, dtype=torch.long), 1)[0]
    with pytest.raises(TrainingError, match="a rank has only its own"):
        train(model, part, lr=0.1, record=eq.Recorder(model))


def train_on_cora(rank, world_size, root):
    data = eq.load_dataset("cora", root)
    part = split(data, owners(data, world_size, "random"), world_size)[rank]
    model = stack(dtype=torch.float32, features=data.num_features, classes=data.classes, layers=5)
    return train(model, part, lr=0.05, epochs=EPOCHS).loss


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_cora_in_float32(parts):
    root = require("cora")
    data = eq.load_dataset("cora", root)
    model = stack(dtype=torch.float32, features=data.num_features, classes=data.classes, layers=5)
    expected = train(model, data, lr=0.05, epochs=EPOCHS).loss
    for loss in run_ranks(parts, train_on_cora, root):
        torch.testing.assert_close(torch.tensor(loss), torch.tensor(expected), rtol=1e-6, atol=0)
