"""Node features where they enter a network: dense, or sparse as a bag of words is."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn.dense.linear import Linear

from equipoise.kernels.csr import Graph, Graphs, build_matrix
from equipoise.nn.functions import NOTHING, compile_for, summed, weighted_sum

# Sparse features that layers have seen: their entries are sorted by column once, not once per epoch.
MATRICES = Graphs()

SPARSE = (torch.sparse_csr, torch.sparse_coo)


class Features:
    """Features that a product with a matrix can be taken of, and the gradient of that matrix.

    A row of sparse features adds up as many columns of the matrix as it has entries, and so does the way back.
    """

    def __init__(self, x: Tensor) -> None:
        self.dense = x.layout not in SPARSE
        self.x = x if self.dense else as_rows(x)
        if not self.dense:
            self.places: Graph = MATRICES.made(self.x, "places", lambda: build_matrix(self.x))

    def times(self, W: Tensor) -> Tensor:
        """x Wᵀ."""
        if self.dense:
            return self.x @ W.t()
        compile_for("gcn", W.dtype, W.shape[0])
        return summed(self.places.ptr, self.places.src, self.x.values(), NOTHING, W.t())

    def gradient(self, dz: Tensor) -> Tensor:
        """The gradient of W, from that of the product."""
        if self.dense:
            return dz.t() @ self.x
        return summed(self.places.tptr, self.places.dst, self.x.values(), self.places.edge, dz).t()


def linear(lin: Linear, x: Tensor) -> Tensor:
    """x Wᵀ + b."""
    if x.layout not in SPARSE:
        out: Tensor = lin(x)
        return out
    features = Features(x)
    out = weighted_sum(features.places, features.x.values(), lin.weight.t())
    return out if lin.bias is None else out + lin.bias


def as_rows(x: Tensor) -> Tensor:
    """Sparse features as compressed rows; converted once."""
    if x.layout == torch.sparse_csr:
        return x
    rows: Tensor = MATRICES.made(x, "rows", lambda: sparse_rows(x.detach()))
    return rows


def sparse_rows(x: Tensor) -> Tensor:
    """Features in compressed rows, without torch's remark that these are new to it."""
    with warnings.catch_warnings(action="ignore"):
        return x.to_sparse_csr()


def dropped(x: Tensor, probability: float, training: bool) -> Tensor:
    """Dropout; of sparse features it drops stored values, as zeros have nothing to lose."""
    if not (training and probability) or x.layout not in SPARSE:
        return F.dropout(x, probability, training)
    x = as_rows(x)
    values = F.dropout(x.values(), probability)
    return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), values, x.shape, check_invariants=False)
