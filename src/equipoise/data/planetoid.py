"""Cora, Citeseer and Pubmed from the pickles of "Revisiting Semi-Supervised Learning with Graph Embeddings" (2016).

A pickle can run any program. These may name nothing but what is listed in ``ADMITTED``, and nothing is imported for
them: each name stands for an object that is already here.
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import coalesce, index_to_mask, remove_self_loops

from equipoise.errors import UnsafePickleError

VALIDATION = 500  # nodes that follow the training nodes

_reconstruct: Any = np.empty(0).__reduce__()[0]  # numpy moved it; this is where it is now

ADMITTED: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("scipy.sparse.csr", "csr_matrix"): csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): csr_matrix,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class RestrictedUnpickler(pickle.Unpickler):
    """Admits arrays, sparse matrices and dictionaries of lists; refuses all else before it runs."""

    def find_class(self, module: str, name: str) -> Any:
        """The object that a pickle names, if it is on the list."""
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise UnsafePickleError(
                f"the pickle asks for {module}.{name}, which no data set needs",
                where="a Planetoid file",
                remedy="do not trust this file; get the published one",
            ) from None


def unpickle(content: bytes) -> Any:
    """What a pickle written by Python 2 holds."""
    return RestrictedUnpickler(io.BytesIO(content), encoding="latin1").load()


def read_planetoid(contents: Mapping[str, bytes], name: str, *, keep_isolated: bool = True) -> Data:
    """The graph as PyG's ``Planetoid`` with ``NormalizeFeatures`` has it: public split, edges in both directions.

    Test nodes are stored shuffled, and the isolated ones among Citeseer's not at all: they get zeros and label 0.

    Args:
        contents: the ``ind.*`` files by name; trusted only as far as ``ADMITTED`` goes.
        name: what follows ``ind.`` in their names.
        keep_isolated: leave nodes without an edge in the masks; they stay in the graph either way.
    """

    def part(suffix: str) -> Any:
        return unpickle(contents[f"ind.{name}.{suffix}"])

    test = torch.from_numpy(np.array(contents[f"ind.{name}.test.index"].split(), dtype=np.int64))
    x = _with_test_rows(_dense(part("allx")), _dense(part("tx")), test)
    y = _with_test_rows(_dense(part("ally")), _dense(part("ty")), test).argmax(dim=1)
    edge_index = _edges(part("graph"), len(y))
    train = len(part("y"))
    masks = [torch.arange(train), torch.arange(train, train + VALIDATION), test]
    train_mask, val_mask, test_mask = (index_to_mask(index, size=len(y)) for index in masks)
    data = NormalizeFeatures()(Data(x=x, y=y, edge_index=edge_index))
    kept = torch.ones_like(train_mask) if keep_isolated else index_to_mask(edge_index.flatten(), size=len(y))
    data.train_mask, data.val_mask, data.test_mask = train_mask & kept, val_mask & kept, test_mask & kept
    return data


def _dense(matrix: Any) -> Tensor:
    array = matrix.toarray() if isinstance(matrix, csr_matrix) else matrix
    return torch.from_numpy(array).to(torch.float)


def _with_test_rows(known: Tensor, stored: Tensor, test: Tensor) -> Tensor:
    """Rows of all nodes: the known ones, then the test nodes', each at its own index; zeros where none is stored."""
    rows = known.new_zeros(int(test.max()) + 1, known.size(1))
    rows[: len(known)] = known
    rows[test] = stored
    return rows


def _edges(graph: Mapping[int, list[int]], nodes: int) -> Tensor:
    pairs = [(source, target) for source, targets in graph.items() for target in targets]
    edge_index, _ = remove_self_loops(torch.tensor(pairs).t())
    edges: Tensor = coalesce(edge_index, num_nodes=nodes, sort_by_row=False)
    return edges
