"""Records as TensorBoard charts (``pip install equipoise[tensorboard]``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from equipoise.errors import EquipoiseError
from equipoise.train.recording import Entry, aggregated

if TYPE_CHECKING:
    from equipoise.train.recorder import Recorder


class TensorBoard:
    """Writes what a recorder records, as it goes, a chart a layer: ``balance/layer03/c_max``, never one a parameter.

    Of what there is for every neuron, a chart has the largest and the mean absolute value. Values that are not finite
    (a relative gradient of attention that is still zero) have no place in a chart.

    Args:
        folder: where TensorBoard looks; one for each run.
        recorder: whose records to write.

    Example::

        rec = eq.Recorder(model, laws, every=25)
        with TensorBoard("runs/bal-o", rec):
            eq.train(model, data, lr=0.05, record=rec)
    """

    def __init__(self, folder: str | Path, recorder: Recorder) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
        except ImportError:
            raise EquipoiseError(
                "TensorBoard is not installed", remedy="pip install 'equipoise[tensorboard]', or use rec.frame()"
            ) from None
        self.recorder = recorder
        self._writer = SummaryWriter(str(folder))
        recorder.listeners.append(self.write)

    def write(self, epoch: int, entries: Sequence[Entry]) -> None:
        """Add the records of one epoch to the charts."""
        for tag, value in aggregated(entries):
            if abs(value) < float("inf"):
                self._writer.add_scalar(tag, value, epoch)

    def close(self) -> None:
        """Write the rest, and listen no more."""
        if self.write in self.recorder.listeners:
            self.recorder.listeners.remove(self.write)
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
