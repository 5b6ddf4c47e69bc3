"""A cache of what is derived from a tensor, such as the sorted graph of an ``edge_index``."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from equipoise.kernels.csr import CSRGraph, NumNodes, build_graph


class GraphCache:
    """Caches values derived from a tensor, such as its graph, for as long as the tensor is alive.

    The key is the tensor object and a checksum of its contents. Unlike torch's version counter, the checksum notices
    changes through a NumPy view, and exists for inference tensors too. It costs about a nanosecond per edge.
    """

    def __init__(self) -> None:
        self._entries: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def get(self, edge_index: Tensor, nodes: NumNodes, self_loops: bool) -> CSRGraph:
        """Graph of an ``edge_index``; see :func:`build_graph`."""
        key = (nodes, self_loops)
        graph: CSRGraph = self.get_or_build(edge_index, key, lambda: build_graph(edge_index, nodes, self_loops))
        return graph

    def get_or_build(self, tensor: Tensor, key: Hashable, build: Callable[[], Any]) -> Any:
        """Return the cached value of a tensor, or build and cache it.

        Args:
            tensor: the tensor that the value derives from, dense or sparse.
            key: tells several values of one tensor apart.
            build: computes the value; called again only after the tensor has changed.

        Returns:
            The value.
        """
        checksum = _checksum(tensor)
        cached, values = self._entries.get(tensor, (None, {}))
        if cached != checksum:
            values = {}
            self._entries[tensor] = (checksum, values)
        if key not in values:
            with torch.inference_mode(False):  # the value may be used in training later
                values[key] = build()
        return values[key]

    def get_or_build_for_pair(self, tensor: Tensor, other: Tensor, key: Hashable, build: Callable[[], Any]) -> Any:
        """Return the cached value of two tensors, or build and cache it.

        Args:
            tensor: as in :meth:`get_or_build`.
            other: a second tensor that the value derives from. Only the value of the last one is kept.
            key: tells several values of the pair apart.
            build: computes the value; called again only after one of the tensors has changed.

        Returns:
            The value.
        """
        last: dict[str, Any] = self.get_or_build(tensor, key, dict)
        checksum = _checksum(other)
        if not last or last["tensor"]() is not other or last["checksum"] != checksum:
            with torch.inference_mode(False):
                last.update(tensor=TensorWeakRef(other), checksum=checksum, value=build())
        return last["value"]


def _checksum(tensor: Tensor) -> int:
    """64-bit checksum of the contents of a tensor; of CSR and CSC tensors of their indices only."""
    parts: tuple[Tensor, ...] = (tensor,)
    if tensor.layout == torch.sparse_csr:
        parts = (tensor.crow_indices(), tensor.col_indices())
    elif tensor.layout == torch.sparse_csc:
        parts = (tensor.ccol_indices(), tensor.row_indices())
    elif tensor.layout == torch.sparse_coo:
        parts = (tensor._indices(), tensor._values())
    return hash(tuple(int(_weighted_sum_of_words(_words(part))) for part in parts))


def _words(tensor: Tensor) -> NDArray[np.uint32]:
    """The bytes of a tensor as 32-bit words; padded with zeros to a multiple of four bytes."""
    if tensor.dtype == torch.bfloat16:  # which NumPy does not have
        tensor = tensor.view(torch.int16)
    data = np.ascontiguousarray(tensor.numpy(force=True)).reshape(-1).view(np.uint8)
    return (np.pad(data, (0, -len(data) % 4)) if len(data) % 4 else data).view(np.uint32)


@njit(cache=True, nogil=True)
def _weighted_sum_of_words(words: NDArray[np.uint32]) -> np.uint64:
    """Σ_i w_i · words[i] mod 2⁶⁴ with odd 32-bit weights that depend on i: 32-bit products vectorise with AVX2."""
    total = np.uint64(len(words))
    for i in range(len(words)):
        weight = ((np.uint64(i) * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)) | np.uint64(1)
        total += np.uint64(words[i]) * weight
    return total
