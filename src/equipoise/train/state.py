"""All that decides how a training run goes on, as plain data."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from equipoise.train.history import History


@dataclass(frozen=True)
class TrainingState:
    """A run after the end of an epoch; restored, it goes on to the same numbers, to the bit.

    Attributes:
        model: its ``state_dict``.
        optimizer: its ``state_dict``.
        history: curves and the best model so far.
        random: state of torch's global generator, from which dropout draws.

    Example:
        >>> from equipoise import Stack, initialize_, load_dataset
        >>> from equipoise.train.protocol import train
        >>> data = load_dataset("synthetic-citation")
        >>> model = initialize_(Stack("gatv2", [data.num_features, 16, data.classes]), "bal-o")
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> state = TrainingState.of(model, optimizer, train(model, data, optimizer=optimizer, epochs=2))
        >>> train(model, data, optimizer=optimizer, epochs=5, history=state.restore(model, optimizer)).epochs
        5
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    history: dict[str, Any]
    random: Tensor

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer, history: History) -> TrainingState:
        """The state now, which later steps do not change; call it between epochs."""
        states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        return cls(*states, asdict(history), torch.get_rng_state())

    def restore(self, model: nn.Module, optimizer: Optimizer) -> History:
        """Put everything back as it was, and return the history to go on with."""
        model.load_state_dict(self.model)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer))
        torch.set_rng_state(self.random)
        return History(**copy.deepcopy(self.history))
