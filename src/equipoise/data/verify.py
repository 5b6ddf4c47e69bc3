"""Is a data set what it should be? Every file by its SHA-256, then the graph by its sizes."""

from __future__ import annotations

from torch_geometric.data import Data

from equipoise.data.catalog import Entry
from equipoise.data.files import is_intact
from equipoise.data.folders import Root, data_folder, missing_files
from equipoise.data.load import load_dataset


def faults(entry: Entry, root: Root = None) -> list[str]:
    """What is wrong with a data set, in plain words; nothing if all is well. Downloads and changes nothing.

    Example:
        >>> from equipoise.data.catalog import catalog_entry
        >>> faults(catalog_entry("synthetic-citation"))
        []
    """
    folder = data_folder(root)
    absent = missing_files(entry, folder)
    found = [f"{file.path} is not there" for file in absent]
    found += [
        f"{file.path}: its SHA-256 differs"
        for file in entry.files
        if file not in absent and not is_intact(file, folder)
    ]
    return found or _miscounts(entry, load_dataset(entry.name, folder))


def _miscounts(entry: Entry, data: Data) -> list[str]:
    masks = data.train_mask, data.val_mask, data.test_mask
    counts = {
        "nodes": (data.num_nodes, entry.nodes),
        "edges": (data.num_edges, entry.edges),
        "features": (data.num_features, entry.features),
        "classes": (int(data.y.max()) + 1, entry.classes),
        "split": (tuple(int(mask.sum()) for mask in masks), entry.split),
    }
    return [f"{what}: {count}, should be {due}" for what, (count, due) in counts.items() if count != due]
