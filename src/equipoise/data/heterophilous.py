"""Chameleon, Squirrel, Actor, Cornell, Texas and Wisconsin from the ``.npz`` files of the replication package of
"A critical look at the evaluation of GNNs under heterophily" (2023).
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from torch_geometric.data import Data

from equipoise.errors import DataOptionError

SPLITS = 10


def read_heterophilous(contents: Mapping[str, bytes], name: str, *, split: int = 1) -> Data:
    """The graph as it is stored: raw features, every edge in its stored direction only, the masks of one split.

    Args:
        contents: the files by name.
        name: the file's name without ``.npz``.
        split: which of the ten masks, 0 … 9.
    """
    if split not in range(SPLITS):
        raise DataOptionError(f"there is no split {split}", where=name, remedy=f"choose one of 0 … {SPLITS - 1}")
    with np.load(io.BytesIO(contents[f"{name}.npz"]), allow_pickle=False) as arrays:
        return Data(
            x=torch.from_numpy(arrays["node_features"]),
            y=torch.from_numpy(arrays["node_labels"]),
            edge_index=torch.from_numpy(arrays["edges"]).t().contiguous(),
            train_mask=torch.from_numpy(arrays["train_masks"][split]),
            val_mask=torch.from_numpy(arrays["val_masks"][split]),
            test_mask=torch.from_numpy(arrays["test_masks"][split]),
        )
