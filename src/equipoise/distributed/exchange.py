"""Exchange of boundary rows between ranks, as a differentiable function.

Forward, every rank sends the rows of own nodes that others read, and receives those of its halo. Backward, it returns
the gradients of its halo to their owners, which add them in the order of ranks. Both are one ``all_to_all_single``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from equipoise.distributed.buffers import BufferPool
from equipoise.distributed.process_group import connection_errors


class Exchange:
    """Which rows a rank sends to and receives from each other rank.

    Args:
        num_own: number of own nodes.
        send: for each rank the local indices of own nodes that it reads.
        receive: for each rank the number of halo nodes that it owns.
        buffers: memory for the rows on their way.

    Attributes:
        num_halo: number of halo nodes.
        bytes_sent: bytes that this rank has sent so far.
    """

    def __init__(self, num_own: int, send: Sequence[Tensor], receive: Sequence[int], buffers: BufferPool) -> None:
        self.num_own, self.num_halo = num_own, sum(receive)
        self.send, self.rows = list(send), torch.cat(list(send))
        self.send_counts, self.receive_counts = [len(rows) for rows in send], list(receive)
        self.bytes_sent, self._buffers = 0, buffers

    def start_forward(self, own: Tensor, halo: Tensor) -> PendingRows:
        """Start to fill the rows of the halo with those of their owners.

        Args:
            own: (own nodes, …) rows of this rank.
            halo: (halo nodes, …) contiguous, where the rows of others are written.

        Returns:
            The transfer. ``halo`` is complete after its ``wait()``.
        """
        rows = self._buffers.empty((len(self.rows), *own.shape[1:]), own.dtype)
        torch.index_select(own.detach(), 0, self.rows, out=rows)
        return self._start(halo, rows, self.receive_counts, self.send_counts)

    def start_backward(self, dhalo: Tensor) -> PendingRows:
        """Start to return the gradients of the halo to their owners.

        Args:
            dhalo: (halo nodes, …) gradients of the halo; not to be changed before the transfer ends.

        Returns:
            The transfer; its ``wait()`` returns the gradients that other ranks have for own rows.
        """
        dhalo = dhalo.contiguous()
        received = self._buffers.empty((len(self.rows), *dhalo.shape[1:]), dhalo.dtype)
        return self._start(received, dhalo, self.send_counts, self.receive_counts)

    def add_(self, dsource: Tensor, received: Tensor) -> Tensor:
        """Add the gradients that other ranks have for own rows, rank by rank, so that sums always round alike.

        Args:
            dsource: (own nodes, …) gradients of this rank; changed in place.
            received: result of :meth:`start_backward`.

        Returns:
            ``dsource``.
        """
        for rows, (lo, hi) in zip(self.send, pairwise(accumulate(self.send_counts, initial=0)), strict=True):
            if hi > lo:
                dsource.index_add_(0, rows, received[lo:hi])  # no row occurs twice among those of one rank
        return dsource

    def _start(self, out: Tensor, rows: Tensor, out_counts: list[int], counts: list[int]) -> PendingRows:
        if len(counts) == 1:
            return PendingRows(out, rows, None)
        self.bytes_sent += rows.numel() * rows.element_size()
        with connection_errors():
            work = dist.all_to_all_single(out, rows, out_counts, counts, async_op=True)
        return PendingRows(out, rows, work)


class PendingRows:
    """A transfer under way.

    Args:
        out: where rows are received.
        rows: rows to send, which must stay in memory until the end of the transfer.
        work: torch's handle; None if there is nothing to transfer.
    """

    def __init__(self, out: Tensor, rows: Tensor, work: Any) -> None:
        self._out, self._rows, self._work = out, rows, work

    def wait(self) -> Tensor:
        """Wait for the end of the transfer and return the received rows."""
        if self._work is not None:
            with connection_errors():
                self._work.wait()
        return self._out


def let_transfers_run() -> None:
    """Yield the processor to the threads of gloo.

    Where every core computes, these threads otherwise wait until the time slice of a computing thread ends, several
    milliseconds. The call takes a microsecond if no thread is waiting.
    """
    if hasattr(os, "sched_yield"):  # not on Windows
        os.sched_yield()


def append_halo(exchange: Exchange, rows: Tensor) -> Tensor:
    """Rows of own nodes followed by those of the halo, differentiable any number of times.

    Args:
        exchange: what to send and receive.
        rows: (own nodes, …).

    Returns:
        (own nodes + halo nodes, …).
    """
    out: Tensor = _AppendHalo.apply(exchange, rows)  # type: ignore[no-untyped-call]
    return out


class _AppendHalo(Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, rows: Tensor) -> Tensor:
        ctx.exchange = exchange
        out = rows.new_empty(exchange.num_own + exchange.num_halo, *rows.shape[1:])
        pending = exchange.start_forward(rows, out[exchange.num_own :])
        out[: exchange.num_own] = rows
        pending.wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, _ReturnHalo.apply(ctx.exchange, grad)  # type: ignore[no-untyped-call]


class _ReturnHalo(Function):
    """The transpose of :class:`_AppendHalo`: rows of the halo are added to those of their owners."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, rows: Tensor) -> Tensor:
        ctx.exchange = exchange
        pending = exchange.start_backward(rows[exchange.num_own :])
        out = rows[: exchange.num_own].clone()
        return exchange.add_(out, pending.wait())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, _AppendHalo.apply(ctx.exchange, grad)  # type: ignore[no-untyped-call]
