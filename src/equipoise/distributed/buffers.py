"""Memory of a layer's arrays, recycled.

The arrays of layers on a part have a few sizes of some megabytes, and their lifetimes interleave. Allocated by the C
library, they fragment the heap, and a rank takes half as much memory again as its tensors need.
"""

from __future__ import annotations

import math
import mmap
from bisect import insort
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

HUGE_PAGE = 2**21  # bytes
MAX_WASTE = 1.75  # a block is at most this many times larger than the tensor in it: classes are fewer than hidden units


class BufferPool:
    """Allocates tensors whose memory returns to the pool with the last reference to them or to a view of them.

    Example:
        >>> pool = BufferPool()
        >>> first = pool.empty((2, 3), torch.float32)
        >>> address = first.data_ptr()
        >>> del first
        >>> pool.empty((3, 2), torch.float32).data_ptr() == address
        True
    """

    def __init__(self) -> None:
        # Size, a number, memory; ascending. Among equal sizes, the block released last comes first: it is in the cache.
        self._free: list[tuple[int, int, Tensor]] = []
        self._released = 0
        self._scratch: dict[str, Tensor] = {}

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate a tensor.

        Args:
            shape: of the tensor.
            dtype: of its entries.

        Returns:
            A contiguous tensor with arbitrary contents, in the smallest free block that fits, or in new memory.
        """
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(tuple(shape), dtype=dtype)
        return _as_tensor(torch.from_numpy(np.asarray(_Block(self, self._take(size)))), shape, dtype)

    def scratch(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An array for results that nobody needs after the current pass of a layer.

        Args:
            name: tells arrays apart that are in use at the same time.
            shape: of the array.
            dtype: of its entries.

        Returns:
            A contiguous tensor with arbitrary contents, valid until the next call with this name.
        """
        size = math.prod(shape) * dtype.itemsize
        if name not in self._scratch or len(self._scratch[name]) < size:
            self._scratch.pop(name, None)  # freed before the larger one is allocated
            self._scratch[name] = _allocate(size)
        return _as_tensor(self._scratch[name], shape, dtype)

    def _take(self, size: int) -> Tensor:
        for index, (free, _, memory) in enumerate(self._free):
            if size <= free <= MAX_WASTE * size:
                del self._free[index]
                return memory
        return _allocate(size)

    def _release(self, memory: Tensor) -> None:
        self._released += 1
        insort(self._free, (len(memory), -self._released, memory))


class _Block:
    """Memory in use: NumPy refers to this object while an array or tensor needs the memory."""

    def __init__(self, pool: BufferPool, memory: Tensor) -> None:
        self._pool, self._memory = pool, memory

    @property
    def __array_interface__(self) -> dict[str, Any]:
        address = (self._memory.data_ptr(), False)
        return {"version": 3, "typestr": "|u1", "shape": (len(self._memory),), "data": address}

    def __del__(self) -> None:
        self._pool._release(self._memory)


def _allocate(size: int) -> Tensor:
    """Bytes, in huge pages where the system has them: kernels read rows at random, each with a translated address."""
    if size < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.uint8)


def _as_tensor(memory: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The beginning of some bytes as a tensor."""
    return memory[: math.prod(shape) * dtype.itemsize].view(dtype).view(tuple(shape))
