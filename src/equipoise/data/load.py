"""Load and verify data sets."""

from __future__ import annotations

from collections.abc import Callable

from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from equipoise.data.catalog import DatasetInfo, dataset_info
from equipoise.data.files import Root, data_folder, is_intact, missing_files, read_files
from equipoise.data.readers import read_heterophilous, read_planetoid
from equipoise.data.synthetic import synthetic_citation
from equipoise.errors import DataOptionError


def load_dataset(
    name: str,
    root: Root = None,
    *,
    undirected: bool = False,
    split: int = 1,
    keep_isolated: bool = False,
    seed: int = 0,
) -> Data:
    """Load a data set as used in the paper.

    Args:
        name: cora, citeseer, pubmed, chameleon, squirrel, actor, cornell, texas, wisconsin or synthetic-citation.
        root: folder with the raw files, which is only read; by default the value of ``EQUIPOISE_DATA``. Without
            either, missing files are downloaded into the user's cache. ``synthetic-citation`` needs no files.
        undirected: add the reverse of every edge; the citation graphs have it already.
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
