"""PyG's ``TransformerConv`` for dense or sparse node features."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn import TransformerConv
from torch_geometric.nn.dense.linear import Linear

from equipoise.nn.sparse_linear import SPARSE_LAYOUTS, linear


class SparseTransformerConv(TransformerConv):  # type: ignore[misc]
    """`TransformerConv <https://arxiv.org/abs/2009.03509>`_ whose node features may be sparse, with PyG's parameters.

    Args:
        args, kwargs: those of :class:`torch_geometric.nn.TransformerConv`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("lin_query", "lin_key", "lin_value", "lin_skip"):
            lin = getattr(self, name)
            setattr(self, name, _SparseLinear(lin.in_channels, lin.out_channels, bias=lin.bias is not None))


class _SparseLinear(Linear):  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b."""
        return linear(self, x) if x.layout in SPARSE_LAYOUTS else super().forward(x)
