"""Random graphs with awkward shapes, for the tests of partitions."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch_geometric.data import Data


@st.composite
def graphs(draw: Any, max_nodes: int = 12) -> Data:
    """Directed graphs with self-loops, duplicate edges and isolated nodes; a single node or none are possible."""
    nodes = draw(st.integers(0, max_nodes))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=40)) if nodes else []
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    data = Data(
        x=torch.from_numpy(rng.standard_normal((nodes, draw(st.integers(0, 3))), dtype=np.float32)),
        edge_index=torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t(),
    )
    if draw(st.booleans()):
        data.y = torch.from_numpy(rng.integers(0, 4, nodes))
        data.train_mask = torch.from_numpy(rng.random(nodes) < 0.5)
        data.val_mask, data.test_mask = ~data.train_mask, torch.ones(nodes, dtype=torch.bool)
    if draw(st.booleans()):
        data.edge_attr = torch.from_numpy(rng.standard_normal((len(edges), 2)))
    return data
