"""Linear maps and dropout of node features, dense or sparse (for example bags of words)."""

from __future__ import annotations

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn.dense.linear import Linear

from equipoise.errors import GraphError
from equipoise.kernels.csr import CSRGraph, build_matrix
from equipoise.kernels.graph_cache import GraphCache
from equipoise.nn.dense_product import can_multiply, multiply, multiply_transposed, weight_gradient
from equipoise.nn.dense_product import linear as dense_linear
from equipoise.nn.hooks import has_hooks
from equipoise.nn.sparse_product import compile_sparse_kernels, spmm, weighted_sum

# Sparsity patterns of features: their entries are sorted by column once, not once per epoch.
MATRIX_CACHE = GraphCache()

SPARSE_LAYOUTS = (torch.sparse_csr, torch.sparse_coo, torch.sparse_csc)


class FeatureMatrix:
    """A dense or sparse feature matrix x with the two products that a linear map needs, outside autograd.

    For sparse features both cost as much as there are nonzero entries.

    Args:
        x: (nodes, features), dense or sparse.
    """

    def __init__(self, x: Tensor) -> None:
        self.dense = x.layout not in SPARSE_LAYOUTS
        self.x = x if self.dense else as_csr(x)
        if not self.dense:
            self.pattern: CSRGraph = MATRIX_CACHE.get_or_build(self.x, "pattern", lambda: build_matrix(self.x))

    @property
    def values(self) -> Tensor:
        """Stored values of sparse features."""
        return self.x.values()

    def linear(self, W: Tensor) -> Tensor:
        """x Wᵀ, differentiable in W any number of times."""
        self._check_width(W)
        if self.dense:
            return self.x @ W.t()
        return weighted_sum(self.pattern, self.values, W.t())

    def _check_width(self, W: Tensor) -> None:
        if W.shape[1] != self.x.shape[1]:
            raise GraphError(
                f"x has {self.x.shape[1]} features, but the layer expects {W.shape[1]}",
                where=f"x of shape {tuple(self.x.shape)}, weight of shape {tuple(W.shape)}",
                remedy="build the layer with in_channels=x.shape[1]",
            )

    def product(self, W: Tensor, *, transposed: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """x Wᵀ.

        Args:
            W: (outputs, features).
            transposed: a contiguous copy of Wᵀ, if the caller has one.
            out: where to write the product; a new tensor by default.

        Returns:
            (nodes, outputs).
        """
        self._check_width(W)  # kernels read without bounds checks
        if self.dense:
            x = self.x.detach()
            return multiply_transposed(x, W, out=out) if transposed is None else multiply(x, transposed, out=out)
        compile_sparse_kernels(W.dtype, W.shape[0])
        return spmm(self.pattern.by_target, self.values, W.t() if transposed is None else transposed, out=out)

    def weight_gradient(self, dz: Tensor) -> Tensor:
        """dzᵀ x, the gradient of W for the gradient dz of the product."""
        if self.dense:
            return weight_gradient(dz, self.x.detach())
        transposed = spmm(self.pattern.by_source, self.values, dz)
        # In the layout of the parameter: autograd would copy any other, at twice the cost of NumPy's copy.
        return torch.from_numpy(np.ascontiguousarray(transposed.numpy().T))


def linear(lin: Linear, x: Tensor) -> Tensor:
    """x Wᵀ + b of dense or sparse features."""
    sparse = x.layout in SPARSE_LAYOUTS
    if has_hooks(lin) or not (sparse or _runs_on_kernels(lin, x)):  # also a lazy module before its first call
        out: Tensor = lin(x)
        return out
    out = FeatureMatrix(x).linear(lin.weight) if sparse else dense_linear(x, lin.weight)
    return out if lin.bias is None else out + lin.bias


def _runs_on_kernels(lin: Linear, x: Tensor) -> bool:
    return type(lin) is Linear and not torch.compiler.is_compiling() and can_multiply(x, lin.weight)


def check_sparse(x: Tensor) -> None:
    """Check the indices of a sparse tensor, once per tensor: torch does not, and reads out of bounds if they are wrong.

    Args:
        x: a tensor of any layout.

    Raises:
        GraphError: an index is out of range.
    """
    if x.layout in SPARSE_LAYOUTS and x.device.type == "cpu":
        MATRIX_CACHE.get_or_build(x, "valid", lambda: _validate(x.detach()))


def _validate(x: Tensor) -> bool:
    try:
        if x.layout == torch.sparse_coo:
            torch.sparse_coo_tensor(x._indices(), x._values(), x.shape, check_invariants=True)
        else:
            rows = x.layout == torch.sparse_csr
            indices = (x.crow_indices(), x.col_indices()) if rows else (x.ccol_indices(), x.row_indices())
            with warnings.catch_warnings(action="ignore"):
                torch.sparse_compressed_tensor(*indices, x.values(), x.shape, layout=x.layout, check_invariants=True)
    except RuntimeError as error:
        raise GraphError(
            f"x is sparse, but its indices are invalid: {error}",
            where=f"x of shape {tuple(x.shape)} in layout {x.layout}",
            remedy="construct it with check_invariants=True to find out where",
        ) from error
    return True


def as_csr(x: Tensor) -> Tensor:
    """Sparse features in CSR layout; the conversion is cached."""
    if x.layout == torch.sparse_csr:
        return x
    check_sparse(x)
    converted: Tensor = MATRIX_CACHE.get_or_build(x, "csr", lambda: to_csr_tensor(x.detach()))
    return converted


def to_csr_tensor(x: Tensor) -> Tensor:
    """Convert to CSR layout without torch's warning that its support is in beta."""
    with warnings.catch_warnings(action="ignore"):
        return x.to_sparse_csr()


def feature_dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Dropout of dense or sparse features; of sparse ones it only needs to drop stored values."""
    if not (training and probability) or x.layout not in SPARSE_LAYOUTS:
        return F.dropout(x, probability, training)
    x = as_csr(x)
    values = F.dropout(x.values(), probability)
    return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), values, x.shape, check_invariants=False)
