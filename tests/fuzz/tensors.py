"""Descriptions of tensors, plain and malformed, from which they are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

FLOATS = ("float32", "float64")
OTHER_DTYPES = ("float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64")
HUGE = 1e30
VALUES = ("normal", "zeros", "nan", "inf", "huge", "tiny")


class Subclass(Tensor):
    """A subclass without methods of its own."""


STORED: dict[str, Callable[[Tensor], Any]] = {
    "transposed": lambda dense: dense.t().contiguous().t() if dense.dim() == 2 else dense,
    "strided": lambda dense: torch.stack([dense, dense], dim=-1)[..., 0],
    "expanded": lambda dense: dense[:1].expand(dense.shape) if dense.dim() and len(dense) else dense,
    "negated": lambda dense: torch.complex(dense.real.float(), dense.real.float()).conj().imag,  # with the negative bit
    "parameter": lambda dense: nn.Parameter(dense) if dense.is_floating_point() else dense,
    "inference": torch.inference_mode()(torch.clone),
    "quantized": lambda dense: torch.quantize_per_tensor(dense.real.float().nan_to_num(), 0.1, 0, torch.qint8),
    "meta": lambda dense: dense.to("meta"),
    "subclass": lambda dense: dense.as_subclass(Subclass),
    "nested": lambda dense: torch.nested.nested_tensor(list(dense)) if dense.dim() > 1 and len(dense) else dense,
    "list": lambda dense: dense.tolist(),
    "array": lambda dense: dense.numpy() if dense.dtype != torch.bfloat16 else dense,
    "none": lambda dense: None,
}
SPARSE = ("csr", "coo", "uncoalesced", "csc")
# PyG and torch may crash on these themselves; only equipoise is called with them.
INVALID_SPARSE = ("csr column", "csr negative", "csr rows", "csr values", "coo index")


@dataclass(frozen=True)
class Features:
    """A tensor of features.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        values: what it contains.
        layout: how it is stored, or what it is instead of a plain tensor.
        grad: whether it requires a gradient.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    values: str = "normal"
    layout: str = "plain"
    grad: bool = False

    def build(self, seed: int = 0) -> Any:
        """The tensor; a new one at every call."""
        dtype = getattr(torch, self.dtype)
        dense = torch.randn(self.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        flat = dense.view(-1)
        if self.values == "zeros":
            dense = dense * 0
        elif self.values == "huge":
            dense = dense * HUGE
        elif self.values == "tiny":
            dense = dense * 1e-40
        elif self.values != "normal" and len(flat):
            flat[seed % len(flat)] = float(self.values)
        tensor = self._laid_out(dense.to(dtype))
        if self.grad and isinstance(tensor, Tensor) and tensor.is_floating_point() and not tensor.is_inference():
            tensor.requires_grad_()
        return tensor

    def _laid_out(self, dense: Tensor) -> Any:
        if self.layout in SPARSE or self.layout in INVALID_SPARSE:
            return sparse(dense, self.layout) if dense.dim() == 2 else dense
        return STORED[self.layout](dense) if self.layout in STORED else dense

    @property
    def may_crash_torch(self) -> bool:
        """Whether torch itself reads out of bounds."""
        return self.layout in INVALID_SPARSE


def sparse(dense: Tensor, layout: str) -> Tensor:
    """A sparse tensor, valid or with indices that torch does not check."""
    if layout == "coo":
        return dense.to_sparse_coo()
    if layout in ("uncoalesced", "coo index"):
        rows, columns = dense.shape
        indices = torch.zeros(2, 4, dtype=torch.long)
        if layout == "coo index":
            indices[1] = columns + 1000
        elif not dense.numel():
            indices = indices[:, :0]
        return torch.sparse_coo_tensor(indices, torch.ones(indices.size(1), dtype=dense.dtype), (rows, columns))
    if layout == "csc":
        return dense.to_sparse_csc()
    csr = dense.to_sparse_csr()
    pointers, columns, values = csr.crow_indices().clone(), csr.col_indices().clone(), csr.values().clone()
    if len(values) and layout != "csr":
        if layout == "csr column":
            columns[-1] = dense.size(1) + 10**6
        elif layout == "csr negative":
            columns[0] = -5
        elif layout == "csr rows":
            pointers[-1] = 10**7
        elif layout == "csr values":
            pointers[1] = -3
    return torch.sparse_csr_tensor(pointers, columns, values, dense.shape, check_invariants=False)


def features(
    *shapes: tuple[int, ...], usual: int = 6, sparse: bool = True, invalid: bool = True
) -> st.SearchStrategy[Features]:
    """Descriptions of features, of the first shape and plain for the most part.

    Args:
        shapes: the usual shape, then others.
        usual: how many times as often the usual value of each property is drawn as each other value.
        sparse: whether sparse tensors are drawn.
        invalid: whether sparse tensors with invalid indices are drawn.

    Returns:
        The strategy.
    """
    layouts = (*STORED, *(SPARSE if sparse else ()), *(INVALID_SPARSE if sparse and invalid else ()))
    return st.builds(
        Features,
        shape=st.sampled_from([shapes[0]] * usual + list(shapes[1:])),
        dtype=st.sampled_from(["float32"] * 2 * usual + ["float64"] * usual + list(OTHER_DTYPES)),
        values=st.sampled_from(["normal"] * usual + list(VALUES)),
        layout=st.sampled_from(["plain"] * 3 * usual + list(layouts)),
        grad=st.booleans(),
    )
