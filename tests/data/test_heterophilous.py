from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data.heterophilous import SPLITS, read_heterophilous
from equipoise.errors import DataOptionError

NAMES = ["chameleon", "squirrel", "actor", "cornell", "texas", "wisconsin"]


def stored(**changes: Any) -> dict[str, np.ndarray]:
    one_hot = np.eye(SPLITS, 12, dtype=bool)
    arrays = {
        "node_features": np.arange(36, dtype=np.float32).reshape(12, 3),
        "node_labels": np.arange(12) % 5,
        "edges": np.array([[0, 1], [2, 1], [3, 3]]),
        "train_masks": one_hot,
        "val_masks": np.roll(one_hot, 1, axis=1),
        "test_masks": np.roll(one_hot, 2, axis=1),
    }
    return arrays | changes


def packed(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return {"tiny.npz": buffer.getvalue()}


def test_features_and_edges_come_as_they_are_stored() -> None:
    data = read_heterophilous(packed(stored()), "tiny")
    assert torch.equal(data.x, torch.arange(36.0).view(12, 3))
    assert data.edge_index.tolist() == [[0, 2, 3], [1, 1, 3]]
    assert data.y.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize("split", range(SPLITS))
def test_each_split_has_its_own_masks(split: int) -> None:
    data = read_heterophilous(packed(stored()), "tiny", split=split)
    places = [mask.nonzero().tolist() for mask in (data.train_mask, data.val_mask, data.test_mask)]
    assert places == [[[split]], [[split + 1]], [[split + 2]]]


def test_the_default_is_number_one() -> None:
    assert read_heterophilous(packed(stored()), "tiny").train_mask.nonzero().tolist() == [[1]]


@pytest.mark.parametrize("split", [-1, 10, 2.5])
def test_a_split_that_there_is_not(split: Any) -> None:
    with pytest.raises(DataOptionError, match=f"no split {split}"):
        read_heterophilous(packed(stored()), "tiny", split=split)


def test_pickled_objects_are_not_read() -> None:
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_heterophilous(packed(stored(node_labels=np.array([{}] * 12, dtype=object))), "tiny")


@pytest.mark.parametrize("name", NAMES)
def test_every_real_node_is_in_one_mask_of_every_split(real_data: Path, name: str) -> None:
    contents = {f"{name}.npz": (real_data / "heterophilous" / f"{name}.npz").read_bytes()}
    for split in range(SPLITS):
        data = read_heterophilous(contents, name, split=split)
        uses = data.train_mask.long() + data.val_mask.long() + data.test_mask.long()
        assert bool((uses == 1).all())
