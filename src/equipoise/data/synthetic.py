"""``synthetic-citation``: a random citation graph that needs no files.

Papers belong to planted fields. They cite mostly papers of their own field, popular ones more often, and consist of a
few words, most of them key words of the field. Some papers have the words of another field than their label's, so that
neither words nor citations alone determine the label. As on Cora, a two-layer GAT reaches a good accuracy, while a deep
one with the default initialisation does not train.

All numbers derive from ``Generator.random`` by comparison, multiplication and rounding down, which are exact on every
machine, so a seed gives the same graph everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from equipoise.errors import DataOptionError
from equipoise.laws.validation import is_integer

NODES, CLASSES, WORDS = 1750, 7, 500
KEY_WORDS = 5  # per field
LENGTH, KEY_WORD_FRACTION = 8, 0.8  # words per paper (duplicates count once), fraction of key words
LABEL_FIDELITY = 0.7  # fraction of papers with the words of their own field; the others have those of a random field
CITATIONS, HOMOPHILY = 2, 0.75  # citations per paper, fraction within the own field; the others are random
TRAIN_PER_CLASS, VALIDATION, TEST = 20, 500, 1000

Draw = Callable[[tuple[int, ...]], NDArray[np.float64]]


def synthetic_citation(seed: int = 0) -> Data:
    """Generate the graph: 1750 papers of 7 fields with 500 words, 20 training nodes per field.

    Args:
        seed: seed of the generator, 0 or more.

    Returns:
        A PyG ``Data`` object.

    Raises:
        DataOptionError: If the seed is negative or no integer.

    Example:
        >>> synthetic_citation().x.shape
        torch.Size([1750, 500])
    """
    if not is_integer(seed) or seed < 0:
        raise DataOptionError(f"{seed!r} is not a valid seed", where="synthetic-citation", remedy="choose 0 or more")
    draw: Draw = np.random.Generator(np.random.PCG64(seed)).random
    y = _permutation(draw) % CLASSES
    train, val, test = _split(y, _permutation(draw))
    edge_index, _ = remove_self_loops(torch.from_numpy(_citations(y, draw)))
    return Data(
        x=torch.from_numpy(_bags_of_words(y, draw)),
        y=torch.from_numpy(y),
        edge_index=to_undirected(edge_index, num_nodes=NODES),
        train_mask=torch.from_numpy(train),
        val_mask=torch.from_numpy(val),
        test_mask=torch.from_numpy(test),
    )


def _to_integers(bound: int, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Map numbers in [0, 1) to integers in [0, bound)."""
    return (uniform * bound).astype(np.int64)


def _permutation(draw: Draw) -> NDArray[np.int64]:
    return np.argsort(draw((NODES,)), kind="stable")


def _split(y: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the masks for training, validation and test, filled in the order of ``order``."""
    masks = np.zeros((3, NODES), dtype=bool)
    for label in range(CLASSES):
        masks[0, order[y[order] == label][:TRAIN_PER_CLASS]] = True
    rest = order[~masks[0, order]]
    masks[1, rest[:VALIDATION]] = True
    masks[2, rest[VALIDATION : VALIDATION + TEST]] = True
    return masks


def _bags_of_words(y: NDArray[np.int64], draw: Draw) -> NDArray[np.float32]:
    """Return binary bags of words with normalised rows; the key words of field f are f, f + 7, f + 14, …"""
    topic = np.where(draw((NODES,)) < LABEL_FIDELITY, y, _to_integers(CLASSES, draw((NODES,))))
    shape = (NODES, LENGTH)
    key_words = _to_integers(KEY_WORDS, draw(shape)) * CLASSES + topic[:, None]
    words = np.where(draw(shape) < KEY_WORD_FRACTION, key_words, _to_integers(WORDS, draw(shape)))
    x = np.zeros((NODES, WORDS), dtype=np.float32)
    np.put_along_axis(x, words, 1, axis=1)
    normalised: NDArray[np.float32] = x / x.sum(axis=1, keepdims=True)
    return normalised


def _citations(y: NDArray[np.int64], draw: Draw) -> NDArray[np.int64]:
    """Return citations of shape (2, number); u² favours low indices, so each field has a few popular papers."""
    citing = np.repeat(np.arange(NODES), CITATIONS)
    members = np.argsort(y, kind="stable").reshape(CLASSES, -1)
    popularity = draw(citing.shape) ** 2
    same_field = members[y[citing], _to_integers(members.shape[1], popularity)]
    any_field = _to_integers(NODES, draw(citing.shape))
    return np.stack([citing, np.where(draw(citing.shape) < HOMOPHILY, same_field, any_field)])
