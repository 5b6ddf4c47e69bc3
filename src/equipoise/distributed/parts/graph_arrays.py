"""The arrays of a graph that is to be partitioned: in memory or in files, read in chunks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import EdgeIndexError, PartitionError

Array = NDArray[Any]
Int = NDArray[np.int64]

CHUNK_BYTES = 2**26  # read and written at a time
MASKS = ("train_mask", "val_mask", "test_mask")
NODE_ARRAYS = ("x", "y", *MASKS)
MAX_NODES = 2**31  # the kernels number nodes by 32-bit integers


@dataclass(frozen=True)
class GraphArrays:
    """A graph as NumPy arrays, which may be mapped from files.

    Args:
        name: name of the graph.
        edge_index: (2, edges), sources and targets.
        node_arrays: features ``x`` and, if the graph has them, ``y`` and the masks: one row per node.
        edge_attr: edge features or weights: one row per edge.
        num_classes: number of classes; ``None`` without integer labels.
    """

    name: str
    edge_index: Array
    node_arrays: Mapping[str, Array]
    edge_attr: Array | None
    num_classes: int | None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_arrays["x"])

    @property
    def num_edges(self) -> int:
        """Number of edges; both directions of an undirected edge count."""
        return int(self.edge_index.shape[1])

    def edge_chunks(self) -> Iterator[tuple[slice, Int, Int]]:
        """Read the edges in order.

        Yields:
            A range of edges, their sources and their targets.

        Raises:
            EdgeIndexError: If an index is negative or not less than the number of nodes.
        """
        for edges in chunks(self.num_edges, 2 * 8):
            source, target = (np.ascontiguousarray(row[edges], dtype=np.int64) for row in self.edge_index)
            for side, nodes in enumerate((source, target)):
                invalid = (nodes < 0) | (nodes >= self.num_nodes)
                if invalid.any():
                    edge = int(np.argmax(invalid))
                    raise EdgeIndexError(
                        f"edge_index refers to node {nodes[edge]}, but x has {self.num_nodes} rows",
                        where=f"edge_index[{side}, {edges.start + edge}]",
                        remedy=f"indices must lie in [0, {self.num_nodes})",
                    )
            yield edges, source, target


def chunks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Split rows into ranges of at most ``CHUNK_BYTES``.

    Args:
        rows: number of rows.
        row_bytes: size of a row.

    Yields:
        Consecutive ranges.

    Example:
        >>> list(chunks(5, CHUNK_BYTES // 2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def read_graph(data: Any) -> GraphArrays:
    """Take the arrays of a graph without copying them, and check their shapes.

    Args:
        data: a PyG ``Data`` object, a mapping with the same names, or a folder with ``x.npy``, ``edge_index.npy`` and,
            optionally, ``y.npy``, ``train_mask.npy``, ``val_mask.npy``, ``test_mask.npy`` and ``edge_attr.npy``.
            An array is a tensor, a NumPy array or the path of an ``.npy`` file, which is mapped into memory.

    Returns:
        The arrays.

    Raises:
        PartitionError: If an array is missing, has the wrong shape or a type that NumPy files cannot hold.
    """
    folder = Path(data) if isinstance(data, (str, PathLike)) else None
    get = _from_folder(folder) if folder else data.get if isinstance(data, Mapping) else _from_attributes(data)
    arrays = {name: _as_array(name, get(name)) for name in (*NODE_ARRAYS, "edge_index", "edge_attr")}
    x, y, edge_index, edge_attr = (arrays[name] for name in ("x", "y", "edge_index", "edge_attr"))
    if x is None or edge_index is None:
        missing = "x" if x is None else "edge_index"
        raise PartitionError(
            f"the graph has no {missing}",
            where=str(folder or type(data).__name__),
            remedy="give node features x and edge_index, as in PyG's Data",
        )
    if x.ndim != 2:
        _refuse_shape("x", x, "(nodes, features)")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
        _refuse_shape("edge_index", edge_index, "(2, edges) of an integer type")
    node_arrays = {name: array for name in NODE_ARRAYS if (array := arrays[name]) is not None}
    for name, array in node_arrays.items():
        if array.ndim == 0 or len(array) != len(x):
            _refuse_shape(name, array, f"one row for each of the {len(x)} nodes")
    if edge_attr is not None and (edge_attr.ndim == 0 or len(edge_attr) != edge_index.shape[1]):
        _refuse_shape("edge_attr", edge_attr, f"one row for each of the {edge_index.shape[1]} edges")
    if len(x) >= MAX_NODES:
        raise PartitionError(f"a graph of {len(x)} nodes is too large", remedy="fewer than 2³¹ nodes are supported")
    name = str(get("name") or (folder.resolve().name if folder else "graph"))
    return GraphArrays(name, edge_index, node_arrays, edge_attr, _num_classes(get("classes"), y))


def _from_attributes(data: Any) -> Any:
    return lambda name: getattr(data, name, None)


def _from_folder(folder: Path) -> Any:
    if not folder.is_dir():
        raise PartitionError(
            f"there is no folder {folder}", remedy="give a graph, or a folder with x.npy and edge_index.npy"
        )
    return lambda name: path if (path := folder / f"{name}.npy").exists() else None


def _as_array(name: str, value: Any) -> Array | None:
    """Convert without copying; files are mapped into memory."""
    if value is None:
        return None
    from_file = isinstance(value, (str, PathLike))
    try:
        if from_file:
            array: Array = np.load(value, mmap_mode="r", allow_pickle=False)
            if not isinstance(array, np.ndarray):
                raise TypeError(f"it holds a {type(array).__name__}")
        else:
            array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asanyarray(value)
        torch.from_numpy(np.empty(0, dtype=array.dtype.newbyteorder("=")))  # loading makes it a tensor
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise PartitionError(
            f"{name} cannot be read as an array of numbers: {error}",
            where=str(value) if from_file else name,
            remedy="give a dense tensor, a NumPy array, or a file written by numpy.save",
        ) from error
    return array


def _refuse_shape(name: str, array: Array, expected: str) -> NoReturn:
    raise PartitionError(
        f"{name} has shape {tuple(array.shape)} and type {array.dtype}", where=name, remedy=f"expected {expected}"
    )


def _num_classes(given: int | None, y: Array | None) -> int | None:
    with suppress(TypeError, ValueError):  # an attribute of this name that is something else, such as names
        return int(given)  # type: ignore[arg-type]
    if y is None or y.dtype.kind not in "iu" or y.shape[1:] not in {(), (1,)} or not len(y):
        return None
    return max(int(y[rows].max()) for rows in chunks(len(y), y.itemsize)) + 1
