"""Parts of a graph in memory, from the owner of every node: slow and obvious, the oracle of the partitioner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from equipoise.distributed.parts.part import Manifest, Part


def split(data: Data, owner: Tensor, parts: int, name: str = "test") -> list[Part]:
    """Split a graph by the owner of its nodes; an owner may have no node."""
    classes = int(data.y.max()) + 1
    manifest = Manifest(name, parts, data.num_nodes, data.num_edges, data.num_features, classes, "test", name)
    source, target = data.edge_index
    reads_halo = torch.zeros(data.num_nodes, dtype=torch.bool)
    reads_halo[target[owner[source] != owner[target]]] = True
    inner, boundary = (~reads_halo).nonzero().view(-1), reads_halo.nonzero().view(-1)
    own = [torch.cat([inner[owner[inner] == rank], boundary[owner[boundary] == rank]]) for rank in range(parts)]
    halos, result = [], []
    for rank in range(parts):
        source, target = data.edge_index[:, owner[data.edge_index[1]] == rank]
        outside = source[owner[source] != rank].unique()
        halo = torch.cat([outside[owner[outside] == other] for other in range(parts)])
        halos.append(halo)
        local = torch.full((data.num_nodes,), -1)
        local[own[rank]] = torch.arange(len(own[rank]))
        local[halo] = len(own[rank]) + torch.arange(len(halo))
        mine: dict[str, Any] = {
            key: getattr(data, key)[own[rank]] for key in ("x", "y", "train_mask", "val_mask", "test_mask")
        }
        mine["edge_attr"] = data.edge_attr[owner[data.edge_index[1]] == rank] if "edge_attr" in data else None
        receive = tuple(int((owner[halo] == other).sum()) for other in range(parts))
        edges = local[torch.stack([source, target])]
        result.append(Part(rank, parts, data.num_nodes, own[rank], halo, edges, (), receive, manifest=manifest, **mine))
    for rank, part in enumerate(result):
        position = {int(node): i for i, node in enumerate(own[rank])}
        wanted = [halo[owner[halo] == rank].tolist() for halo in halos]
        send = tuple(torch.tensor([position[node] for node in nodes], dtype=torch.long) for nodes in wanted)
        result[rank] = replace(part, send=send)
    return result


def random_graph(nodes: int = 40, features: int = 6, classes: int = 3, seed: int = 0) -> Data:
    """A directed graph with isolated nodes, self-loops and repeated edges."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    connected = nodes - 5  # the last five nodes have no edge
    edge_index = torch.cat([draw(connected, 2, 4 * nodes), torch.tensor([[3, 3, 5], [3, 4, 5]])], dim=1)
    split_of = draw(3, nodes)
    split_of[:3] = torch.arange(3)
    return Data(
        x=torch.randn(nodes, features, generator=generator, dtype=torch.float64),
        edge_index=edge_index,
        edge_attr=torch.rand(edge_index.shape[1], generator=generator, dtype=torch.float64) + 0.1,
        y=draw(classes, nodes).index_fill(0, torch.tensor([0]), classes - 1),
        train_mask=split_of == 0,
        val_mask=split_of == 1,
        test_mask=split_of == 2,
    )


def owners(data: Data, parts: int, case: str) -> Tensor:
    """Owners of nodes: at random, all neighbours elsewhere as far as possible, or with an empty part."""
    nodes = data.num_nodes
    if case == "alternating":
        return torch.arange(nodes) % parts
    random = torch.randint(parts, (nodes,), generator=torch.Generator().manual_seed(parts))
    return random.clamp(max=parts - 2) if case == "empty part" else random
