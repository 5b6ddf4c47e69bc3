import gc
from dataclasses import replace

import pytest
import torch

from equipoise.bench import mini_batches
from equipoise.bench.cases import MINI_BATCH_CASE, random_graph
from equipoise.bench.mini_batches import sample_nodes, time_mini_batches
from equipoise.bench.report import EQUIPOISE
from equipoise.bench.timing import peak_memory, reset_peak_memory
from equipoise.nn.dispatch import GRAPH_CACHE
from equipoise.nn.stack import Stack


def test_induced_subgraph_keeps_edges_between_sampled_nodes():
    data = random_graph(60, 400, 3)
    data.x[:, 0] = torch.arange(60)
    batch = sample_nodes(data, 20, seed=1)
    names = batch.x[:, 0].long()
    kept = torch.isin(data.edge_index, names).all(dim=0)
    assert torch.equal(names[batch.edge_index], data.edge_index[:, kept])
    assert torch.equal(batch.y, data.y[names])


def test_all_implementations_are_timed_on_every_batch(monkeypatch):
    monkeypatch.setattr(mini_batches, "BATCHES", 3)
    monkeypatch.setattr(mini_batches, "BATCH_NODES", 30)
    case = replace(MINI_BATCH_CASE, nodes=100, edges=600, features=6, width=8, rounds=1, epochs=3)
    timing = time_mini_batches(case)
    assert {name: len(samples) for name, samples in timing.samples.items()} == {
        EQUIPOISE: 3,
        "PyG": 3,
        "PyG looped": 3,
    }


@pytest.mark.slow
def test_memory_is_flat_over_many_graphs():
    model = Stack("gatv2", [8, 8, 8, 3])
    generator = torch.Generator().manual_seed(0)

    def train_on(batches):
        for batch in range(batches):
            nodes = 400 + batch % 100
            edge_index = torch.randint(nodes, (2, 10_000), generator=generator)
            model(torch.rand(nodes, 8, generator=generator), edge_index).sum().backward()

    entries = len(GRAPH_CACHE._entries)  # of graphs that are still in use elsewhere
    train_on(500)
    reset_peak_memory()
    before = peak_memory()
    train_on(4_500)
    assert peak_memory() - before < 4 * 2**20  # the sorted graphs would need 900 MB
    gc.collect()
    assert len(GRAPH_CACHE._entries) <= entries
