"""One call for every data set."""

from __future__ import annotations

from collections.abc import Callable

from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from equipoise.data.catalog import Entry, catalog_entry
from equipoise.data.files import read_files
from equipoise.data.folders import Root
from equipoise.data.heterophilous import read_heterophilous
from equipoise.data.planetoid import read_planetoid
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
    """The graph of this name, as the paper uses it.

    Args:
        name: cora, citeseer, pubmed, chameleon, squirrel, actor, cornell, texas, wisconsin or synthetic-citation.
        root: a folder with the raw files, only ever read; else the one that ``EQUIPOISE_DATA`` names; else the user's
            cache, into which missing files are downloaded. ``synthetic-citation`` has no files and needs none of them.
        undirected: add the reverse of every edge; the citation graphs come with it anyway.
        split: which of ten masks, 0 … 9 (all but the citation graphs).
        keep_isolated: leave nodes without an edge in the masks (Citeseer).
        seed: which graph (``synthetic-citation``).

    Returns:
        ``x``, ``y``, ``edge_index``, ``train_mask``, ``val_mask``, ``test_mask``, ``name``, and ``classes``: how many.

    Example:
        >>> data = load_dataset("synthetic-citation")
        >>> data.classes, int(data.train_mask.sum())
        (7, 140)
    """
    entry = catalog_entry(name)
    loader, own = LOADERS[entry.name]
    given = {"split": (split, 1), "keep_isolated": (keep_isolated, False), "seed": (seed, 0)}
    options = {option: value for option, (value, default) in given.items() if value != default}
    if foreign := [option for option in options if option not in own]:
        raise DataOptionError(
            f"{entry.title} has no option {foreign[0]!r}",
            where=f"{foreign[0]}={options[foreign[0]]!r}",
            remedy=f"leave it out; {entry.title} takes: {', '.join((*own, 'undirected'))}",
        )
    data = loader(entry, root, **options)
    if undirected:
        data.edge_index = to_undirected(data.edge_index, num_nodes=data.num_nodes)
    data.name, data.classes = entry.name, entry.classes
    return data


def _citation(entry: Entry, root: Root, keep_isolated: bool = False) -> Data:
    return read_planetoid(read_files(entry, root), entry.name, keep_isolated=keep_isolated)


def _heterophilous(entry: Entry, root: Root, split: int = 1) -> Data:
    return read_heterophilous(read_files(entry, root), entry.name, split=split)


def _synthetic(entry: Entry, root: Root, seed: int = 0) -> Data:  # noqa: ARG001 - the signature of a loader
    return synthetic_citation(seed)


# Name → who loads it, and the options that it has of its own.
LOADERS: dict[str, tuple[Callable[..., Data], tuple[str, ...]]] = {
    "cora": (_citation, ()),
    "citeseer": (_citation, ("keep_isolated",)),
    "pubmed": (_citation, ()),
    "chameleon": (_heterophilous, ("split",)),
    "squirrel": (_heterophilous, ("split",)),
    "actor": (_heterophilous, ("split",)),
    "cornell": (_heterophilous, ("split",)),
    "texas": (_heterophilous, ("split",)),
    "wisconsin": (_heterophilous, ("split",)),
    "synthetic-citation": (_synthetic, ("seed",)),
}
