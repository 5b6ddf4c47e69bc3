"""Load and verify data sets, and read the published file formats.

*Planetoid*: Cora, Citeseer and Pubmed as pickles of "Revisiting Semi-Supervised Learning with Graph Embeddings" (2016).
A pickle can execute any code, so the unpickler resolves only the names in ``ALLOWED_GLOBALS``, and imports nothing:
each name maps to an object that is already loaded.

*Heterophilous*: Chameleon, Squirrel, Actor, Cornell, Texas and Wisconsin as ``.npz`` files of "A critical look at the
evaluation of GNNs under heterophily" (2023). The paper uses their edges in the stored direction only. Minesweeper,
Tolokers and the filtered versions of Chameleon and Squirrel, which lack duplicate nodes, come from the same collection
but are not part of the paper; they are undirected, as their authors use them.
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import coalesce, index_to_mask, remove_self_loops, to_undirected

from equipoise.data.catalog import DatasetInfo, dataset_info
from equipoise.data.files import Root, data_folder, is_intact, missing_files, read_files
from equipoise.data.synthetic import synthetic_citation
from equipoise.errors import DataError, DataOptionError, UnsafePickleError
from equipoise.laws.validation import is_integer

MASKS = ("train_mask", "val_mask", "test_mask")
VALIDATION_NODES = 500  # they follow the training nodes

_reconstruct: Any = np.empty(0).__reduce__()[0]  # its module differs between NumPy versions

ALLOWED_GLOBALS: Mapping[tuple[str, str], Any] = {
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
    """An unpickler for arrays, sparse matrices and dictionaries of lists, which rejects everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Resolve a name of the pickle.

        Args:
            module: module of the object.
            name: name of the object.

        Returns:
            The object.

        Raises:
            UnsafePickleError: If the name is not allowed.
        """
        try:
            return ALLOWED_GLOBALS[module, name]
        except KeyError:
            raise UnsafePickleError(
                f"the pickle refers to {module}.{name}, which no data set needs",
                where="a Planetoid file",
                remedy="do not trust this file; use the published one",
            ) from None


def unpickle(content: bytes) -> Any:
    """Load a pickle written by Python 2."""
    return RestrictedUnpickler(io.BytesIO(content), encoding="latin1").load()


def read_planetoid(contents: Mapping[str, bytes], name: str, *, keep_isolated: bool = True) -> Data:
    """Read a citation graph as PyG's ``Planetoid`` with ``NormalizeFeatures`` does: public split, edges symmetric.

    Test nodes are stored in shuffled order. Citeseer's isolated test nodes are not stored; they get zero features and
    label 0.

    Args:
        contents: the ``ind.*`` files by name.
        name: the part of the file names after ``ind.``.
        keep_isolated: keep nodes without edges in the masks. They stay in the graph in either case.

    Returns:
        The graph with features, labels, edges and masks.

    Raises:
        DataError: If the files do not contain a graph.
    """
    with _parsing(f"ind.{name}.*"):
        return _check_graph(_planetoid_graph(contents, name, keep_isolated))


@contextmanager
def _parsing(file: str) -> Iterator[None]:
    """Raise the error of a parser, of whatever class, as a :class:`DataError`."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{file} cannot be parsed: {reason}", where=file, remedy="use the published file") from error


def _check_graph(data: Data) -> Data:
    """Check that the tensors of a graph fit together, and return it."""
    nodes = len(data.x)
    valid = {
        "x": data.x.dim() == 2 and data.x.is_floating_point(),
        "y": data.y.shape == (nodes,) and data.y.dtype == torch.int64,
        "edge_index": data.edge_index.dim() == 2 and data.edge_index.dtype == torch.int64,
        **{name: data[name].shape == (nodes,) and data[name].dtype == torch.bool for name in MASKS},
    }
    if not all(valid.values()):
        wrong = [name for name, right in valid.items() if not right]
        raise ValueError(f"{', '.join(wrong)} of the wrong shape or type")
    data.validate()  # the shape and the indices of edge_index
    if len(data.edge_index.flatten()) and int(data.edge_index.min()) < 0:
        raise ValueError("a negative index of a node")
    return data


def _planetoid_graph(contents: Mapping[str, bytes], name: str, keep_isolated: bool) -> Data:
    def part(suffix: str) -> Any:
        return unpickle(contents[f"ind.{name}.{suffix}"])

    test = torch.from_numpy(np.array(contents[f"ind.{name}.test.index"].split(), dtype=np.int64))
    x = _with_test_rows(_dense(part("allx")), _dense(part("tx")), test)
    y = _with_test_rows(_dense(part("ally")), _dense(part("ty")), test).argmax(dim=1)
    edge_index = _edge_index(part("graph"), len(y))
    train = len(part("y"))
    masks = [torch.arange(train), torch.arange(train, train + VALIDATION_NODES), test]
    train_mask, val_mask, test_mask = (index_to_mask(index, size=len(y)) for index in masks)
    data = NormalizeFeatures()(Data(x=x, y=y, edge_index=edge_index))
    usable = torch.ones_like(train_mask) if keep_isolated else index_to_mask(edge_index.flatten(), size=len(y))
    data.train_mask, data.val_mask, data.test_mask = train_mask & usable, val_mask & usable, test_mask & usable
    return data


def _dense(matrix: Any) -> Tensor:
    if isinstance(matrix, csr_matrix):
        matrix.check_format(full_check=True)  # toarray does not check indices
        matrix = matrix.toarray()
    return torch.from_numpy(matrix).to(torch.float)


def _with_test_rows(known: Tensor, stored: Tensor, test: Tensor) -> Tensor:
    """Combine the rows of known nodes and of test nodes, the latter at their indices; missing rows are zero."""
    rows = known.new_zeros(int(test.max()) + 1, known.size(1))
    rows[: len(known)] = known
    rows[test] = stored
    return rows


def _edge_index(graph: Mapping[int, list[int]], nodes: int) -> Tensor:
    pairs = torch.tensor([(source, target) for source, targets in graph.items() for target in targets])
    if int(pairs.min()) < 0 or int(pairs.max()) >= nodes:  # which coalesce would drop or mistake for others
        raise ValueError(f"the graph refers to nodes outside of [0, {nodes})")
    edge_index, _ = remove_self_loops(pairs.t())
    edges: Tensor = coalesce(edge_index, num_nodes=nodes, sort_by_row=False)
    return edges


SPLITS = 10


def read_heterophilous(contents: Mapping[str, bytes], name: str, *, split: int = 1) -> Data:
    """Read a heterophilous graph: raw features, edges in their stored direction only, the masks of one split.

    Args:
        contents: the files by name.
        name: file name without ``.npz``.
        split: which of the ten splits, 0 to 9.

    Returns:
        The graph with features, labels, edges and masks.

    Raises:
        DataOptionError: If there is no such split.
        DataError: If the file does not contain a graph.
    """
    if not is_integer(split) or split not in range(SPLITS):
        raise DataOptionError(
            f"there is no split {split!r}", where=name, remedy=f"choose a split from 0 to {SPLITS - 1}"
        )
    file = f"{name}.npz"
    with _parsing(file), np.load(io.BytesIO(contents[file]), allow_pickle=False) as arrays:
        return _check_graph(
            Data(
                x=torch.from_numpy(arrays["node_features"]),
                y=torch.from_numpy(arrays["node_labels"]),
                edge_index=torch.from_numpy(arrays["edges"]).t().contiguous(),
                train_mask=torch.from_numpy(arrays["train_masks"][split]),
                val_mask=torch.from_numpy(arrays["val_masks"][split]),
                test_mask=torch.from_numpy(arrays["test_masks"][split]),
            )
        )


def load_dataset(
    name: str,
    root: Root = None,
    *,
    undirected: bool = False,
    split: int = 1,
    keep_isolated: bool = False,
    seed: int = 0,
) -> Data:
    """Load a data set as used in the paper, or by its authors if it is not part of the paper.

    Args:
        name: cora, citeseer, pubmed, chameleon, squirrel, actor, cornell, texas, wisconsin (the paper's nine),
            minesweeper, tolokers, chameleon-filtered, squirrel-filtered or synthetic-citation.
        root: folder with the raw files, which is only read; by default the value of ``EQUIPOISE_DATA``. Without
            either, missing files are downloaded into the user's cache. ``synthetic-citation`` needs no files.
        undirected: add the reverse of every edge; only the paper's six heterophilous graphs lack it.
        split: which of ten splits, 0 to 9 (all data sets but the citation graphs).
        keep_isolated: keep nodes without edges in the masks (Citeseer only).
        seed: seed of the graph (``synthetic-citation`` only).

    Returns:
        A PyG ``Data`` object with ``x``, ``y``, ``edge_index``, ``train_mask``, ``val_mask``, ``test_mask``, ``name``
        and ``classes``, the number of classes.

    Raises:
        ChoiceError: If the name is unknown.
        DataOptionError: If the data set has no such option, or the value is out of range.
        MissingDataError: If files are missing and cannot be downloaded; the message lists them.
        ChecksumError: If a file is not the published one.

    Example:
        >>> data = load_dataset("synthetic-citation")
        >>> data.classes, int(data.train_mask.sum())
        (7, 140)
    """
    info = dataset_info(name)
    loader, supported = LOADERS[info.name]
    given = {"split": (split, 1), "keep_isolated": (keep_isolated, False), "seed": (seed, 0)}
    options = {option: value for option, (value, default) in given.items() if value != default}
    if unsupported := [option for option in options if option not in supported]:
        raise DataOptionError(
            f"{info.title} has no option {unsupported[0]!r}",
            where=f"{unsupported[0]}={options[unsupported[0]]!r}",
            remedy=f"leave it out; options of {info.title}: {', '.join((*supported, 'undirected'))}",
        )
    data = loader(info, root, **options)
    if undirected:
        data.edge_index = to_undirected(data.edge_index, num_nodes=data.num_nodes)
    data.name, data.classes = info.name, info.classes
    return data


def _load_citation(info: DatasetInfo, root: Root, keep_isolated: bool = False) -> Data:
    return read_planetoid(read_files(info, root), info.name, keep_isolated=keep_isolated)


def _load_heterophilous(info: DatasetInfo, root: Root, split: int = 1) -> Data:
    return read_heterophilous(read_files(info, root), info.name, split=split)


def _load_undirected(info: DatasetInfo, root: Root, split: int = 1) -> Data:
    data = read_heterophilous(read_files(info, root), info.name.replace("-", "_"), split=split)
    data.edge_index = to_undirected(data.edge_index, num_nodes=data.num_nodes)
    return data


def _load_synthetic(info: DatasetInfo, root: Root, seed: int = 0) -> Data:  # noqa: ARG001 - the signature of a loader
    return synthetic_citation(seed)


# Name → function and the options that it supports.
LOADERS: dict[str, tuple[Callable[..., Data], tuple[str, ...]]] = {
    "cora": (_load_citation, ()),
    "citeseer": (_load_citation, ("keep_isolated",)),
    "pubmed": (_load_citation, ()),
    "chameleon": (_load_heterophilous, ("split",)),
    "squirrel": (_load_heterophilous, ("split",)),
    "actor": (_load_heterophilous, ("split",)),
    "cornell": (_load_heterophilous, ("split",)),
    "texas": (_load_heterophilous, ("split",)),
    "wisconsin": (_load_heterophilous, ("split",)),
    "minesweeper": (_load_undirected, ("split",)),
    "tolokers": (_load_undirected, ("split",)),
    "chameleon-filtered": (_load_undirected, ("split",)),
    "squirrel-filtered": (_load_undirected, ("split",)),
    "synthetic-citation": (_load_synthetic, ("seed",)),
}


def dataset_problems(info: DatasetInfo, root: Root = None) -> list[str]:
    """Verify the checksum of every file and the sizes of the graph, without downloading or changing anything.

    Args:
        info: the data set.
        root: the user's data folder, see :func:`load_dataset`.

    Returns:
        One line per problem; empty if there is none.

    Example:
        >>> from equipoise.data.catalog import dataset_info
        >>> dataset_problems(dataset_info("synthetic-citation"))
        []
    """
    folder = data_folder(root)
    missing = missing_files(info, folder)
    problems = [f"{file.path} is missing" for file in missing]
    problems += [
        f"{file.path}: SHA-256 differs" for file in info.files if file not in missing and not is_intact(file, folder)
    ]
    return problems or _size_problems(info, load_dataset(info.name, folder))


def _size_problems(info: DatasetInfo, data: Data) -> list[str]:
    masks = data.train_mask, data.val_mask, data.test_mask
    sizes = {
        "nodes": (data.num_nodes, info.nodes),
        "edges": (data.num_edges, info.edges),
        "features": (data.num_features, info.features),
        "classes": (int(data.y.max()) + 1, info.classes),
        "split": (tuple(int(mask.sum()) for mask in masks), info.split),
    }
    return [f"{name}: {size}, expected {expected}" for name, (size, expected) in sizes.items() if size != expected]
