"""The form in which a model gets its features: sparse, where they are and the model takes them so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from equipoise.nn.features import sparse_rows

DENSE = 0.1  # share of entries other than zero from which on a dense product is the faster one


def features_for(model: nn.Module, data: Data) -> Tensor:
    """``data.x``, or the same in compressed rows if it is mostly zeros and the model works with that as well.

    Whether it does is tried: some models have operations on their input that sparse tensors lack.
    """
    x: Tensor = data.x
    if x.layout != torch.strided or not x.is_floating_point() or int(x.count_nonzero()) > DENSE * x.numel():
        return x
    sparse = sparse_rows(x)
    return sparse if _takes(model, sparse, x, data.edge_index) else x


def _takes(model: nn.Module, sparse: Tensor, dense: Tensor, edge_index: Tensor) -> bool:
    with trial(model), torch.no_grad():
        expected = model.eval()(dense, edge_index)
        try:
            model.train()(sparse, edge_index)  # dropout of sparse features fails in training only
            scores = model.eval()(sparse, edge_index)
        except Exception:  # whatever a model makes of a tensor that it was not written for
            return False
    scale = float(expected.abs().max())
    return scores.shape == expected.shape and torch.allclose(scores, expected, rtol=1e-3, atol=1e-3 * scale)


@contextmanager
def trial(model: nn.Module) -> Iterator[Callable[[], bool]]:
    """Runs of a model that leave no trace: random state, buffers and mode are put back.

    What it gives tells whether random state and buffers are untouched so far.
    """
    state, training = torch.get_rng_state(), model.training
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def untouched() -> bool:
        same = all(torch.equal(buffer, kept[name]) for name, buffer in model.named_buffers())
        return same and torch.equal(torch.get_rng_state(), state)

    try:
        yield untouched
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
        model.train(training)
        torch.set_rng_state(state)
