"""Loss and gradients of replicated weights: every rank has the whole network and a share of the loss."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from equipoise.distributed.process_group import gather_objects, sum_tensor_
from equipoise.errors import DistributedError


def sum_over_ranks(share: Tensor) -> Tensor:
    r"""The sum of a loss over all ranks, whose gradient is that of this rank's share.

    .. math::
        \mathcal{L} = \sum_r \mathcal{L}_r, \qquad
        \nabla_\theta \mathcal{L} = \sum_r \nabla_\theta \mathcal{L}_r

    After ``backward()``, the gradients of the parameters are those of :math:`\mathcal{L}_r`, so
    :func:`sum_gradients` completes them. All ranks must call both.

    Args:
        share: this rank's share of the loss, such as the sum over its own training nodes divided by the number of all
            training nodes.

    Returns:
        The sum, the same bits on every rank.

    Raises:
        DistributedError: if another rank fails or does not answer.

    Example:
        >>> share = torch.tensor(2.0, requires_grad=True)
        >>> sum_over_ranks(share)  # one process
        tensor(2., grad_fn=<_SumOverRanksBackward>)
    """
    total: Tensor = _SumOverRanks.apply(share)  # type: ignore[no-untyped-call]
    return total


class _SumOverRanks(Function):
    @staticmethod
    def forward(_ctx: Any, share: Tensor) -> Tensor:
        return sum_tensor_(share.detach().clone())

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return grad


def sum_gradients(model: nn.Module) -> None:
    """Sum the gradients of a model over all ranks, in one exchange; call it between ``backward()`` and ``step()``.

    The result is the same to the bit on every rank, so that replicated weights stay equal, and in every run with the
    same number of ranks. Parameters without a gradient on this rank count as zero. In one process it does nothing.

    Args:
        model: the model; on every rank the same parameters require gradients.

    Returns:
        None; the gradients are changed in place.

    Raises:
        DistributedError: if another rank fails or does not answer.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> sum_gradients(model)  # one process
        >>> model.weight.grad
        tensor([[1., 1.]])
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for dtype in {parameter.dtype: None for parameter in parameters}:
        group = [parameter for parameter in parameters if parameter.dtype == dtype]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in group]
        total = sum_tensor_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for parameter, summed in zip(group, torch.split(total, [p.numel() for p in group]), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(summed.view_as(parameter))


def check_equal_weights(model: nn.Module, *, after_step: bool = False) -> None:
    """Check that all ranks have the same parameters and buffers.

    Args:
        model: the model.
        after_step: whether an optimizer has taken a step. Then only parameters count.

    Raises:
        DistributedError: if they differ, on every rank.
    """
    digest = hashlib.sha256()
    for name, value in dict(model.named_parameters()).items() if after_step else model.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    digests = gather_objects(digest.hexdigest())
    if different := [rank for rank, other in enumerate(digests) if other != digests[0]]:
        raise DistributedError(
            f"the weights of rank {different[0]} differ from those of rank 0" + " after a step" * after_step,
            remedy="train with the same optimizer, learning rate and weight decay on every rank"
            if after_step
            else "initialise with the same seed on every rank: "
            "initialize_(model, generator=torch.Generator().manual_seed(0))",
        )
