"""``synthetic-citation``: a citation graph made up from a seed, for when there is no network and no time.

Papers belong to planted fields, cite mostly their own field, popular papers more than others, and use a few words,
many of them the field's key words. Some papers are about another field than the one they are filed under, so neither
words nor citations tell all. As on Cora, a GAT of two layers does well on it and a deep one at its default start does
not train.

Every number comes from ``Generator.random`` by comparing, multiplying and rounding down, which no machine does
differently, so a seed gives the same graph everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from equipoise.errors import DataOptionError

NODES, CLASSES, WORDS = 1750, 7, 500
KEY_WORDS = 5  # of each field
LENGTH, KEY_SHARE = 8, 0.8  # words of a paper, before repeated ones count once, and how many are key words
FAITHFUL = 0.7  # papers that are surely about the field they are filed under; the others are about any
CITATIONS, KINSHIP = 2, 0.75  # citations of a paper, and how many are surely of its own field
TRAIN_PER_CLASS, VALIDATION, TEST = 20, 500, 1000

Draw = Callable[[tuple[int, ...]], NDArray[np.float64]]


def synthetic_citation(seed: int = 0) -> Data:
    """The graph of this seed: 1750 papers of 7 fields in 500 words, 20 of each field to train on.

    Example:
        >>> synthetic_citation().x.shape
        torch.Size([1750, 500])
    """
    if seed < 0:
        raise DataOptionError(f"{seed} is no seed", where="synthetic-citation", remedy="choose 0 or more")
    draw: Draw = np.random.Generator(np.random.PCG64(seed)).random
    y = _shuffled(draw) % CLASSES
    train, val, test = _split(y, _shuffled(draw))
    edge_index, _ = remove_self_loops(torch.from_numpy(_citations(y, draw)))
    return Data(
        x=torch.from_numpy(_bags_of_words(y, draw)),
        y=torch.from_numpy(y),
        edge_index=to_undirected(edge_index, num_nodes=NODES),
        train_mask=torch.from_numpy(train),
        val_mask=torch.from_numpy(val),
        test_mask=torch.from_numpy(test),
    )


def _below(bound: int, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Numbers in [0, 1) as integers 0 … bound − 1."""
    return (uniform * bound).astype(np.int64)


def _shuffled(draw: Draw) -> NDArray[np.int64]:
    return np.argsort(draw((NODES,)), kind="stable")


def _split(y: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Masks for training, validation and test: the first so many nodes of ``order``."""
    masks = np.zeros((3, NODES), dtype=bool)
    for label in range(CLASSES):
        masks[0, order[y[order] == label][:TRAIN_PER_CLASS]] = True
    rest = order[~masks[0, order]]
    masks[1, rest[:VALIDATION]] = True
    masks[2, rest[VALIDATION : VALIDATION + TEST]] = True
    return masks


def _bags_of_words(y: NDArray[np.int64], draw: Draw) -> NDArray[np.float32]:
    """Binary bags of words, each row divided by its sum; the key words of field f are f, f + 7, f + 14, …"""
    about = np.where(draw((NODES,)) < FAITHFUL, y, _below(CLASSES, draw((NODES,))))
    shape = (NODES, LENGTH)
    key_words = _below(KEY_WORDS, draw(shape)) * CLASSES + about[:, None]
    words = np.where(draw(shape) < KEY_SHARE, key_words, _below(WORDS, draw(shape)))
    x = np.zeros((NODES, WORDS), dtype=np.float32)
    np.put_along_axis(x, words, 1, axis=1)
    normalised: NDArray[np.float32] = x / x.sum(axis=1, keepdims=True)
    return normalised


def _citations(y: NDArray[np.int64], draw: Draw) -> NDArray[np.int64]:
    """Who cites whom, (2, citations); u² prefers low numbers, so every field has its few well-known papers."""
    citing = np.repeat(np.arange(NODES), CITATIONS)
    members = np.argsort(y, kind="stable").reshape(CLASSES, -1)
    popular = draw(citing.shape) ** 2
    kin = members[y[citing], _below(members.shape[1], popular)]
    anyone = _below(NODES, draw(citing.shape))
    return np.stack([citing, np.where(draw(citing.shape) < KINSHIP, kin, anyone)])
