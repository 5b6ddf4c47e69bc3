"""Tensors as the kernels take them: flat contiguous arrays of one dtype, with channels padded to whole SIMD vectors."""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.kernels.arguments import HeadShape
from equipoise.kernels.simd import Blocks, padded_channels, vector_blocks

Array = np.ndarray[Any, Any]


def promote(*tensors: Any) -> tuple[Any, ...]:
    """Convert tensors to their common dtype, as torch's own operations do; None stays None."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    if len(dtypes) == 1:
        return tensors
    common = reduce(torch.promote_types, dtypes)
    return tuple(None if tensor is None else tensor.to(common) for tensor in tensors)


def pad_channels(features: Tensor) -> Tensor:
    """Append zero channels up to a multiple of the smallest vector width."""
    missing = padded_channels(features.shape[-1]) - features.shape[-1]
    return F.pad(features, (0, missing)) if missing else features


def flat_arrays(*tensors: Tensor) -> list[Array]:
    """Contiguous flat arrays of tensors."""
    # Not reshape: it may return a view with stride 0 of an expanded tensor, and kernels ignore strides.
    return [tensor.detach().numpy().ravel() for tensor in tensors]


@cache
def cached_blocks(channels: int, dtype: torch.dtype) -> Blocks:
    """:func:`~equipoise.kernels.simd.vector_blocks` of a torch dtype."""
    return vector_blocks(channels, torch.empty(0, dtype=dtype).numpy().dtype)


def head_shape(z: Tensor) -> HeadShape:
    """Number of heads and SIMD blocks of features (nodes, heads, channels)."""
    return HeadShape(z.shape[-2], cached_blocks(z.shape[-1], z.dtype))
