"""Records as TensorBoard charts (``pip install equipoise[tensorboard]``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from equipoise.errors import EquipoiseError
from equipoise.integrations.validation import check_recorder
from equipoise.training.recording import Record, chart_values

if TYPE_CHECKING:
    from equipoise.training.recorder import Recorder


class TensorBoard:
    """Write a recorder's records to TensorBoard during training, one chart per quantity and layer.

    Quantities with one value per neuron become two charts: the maximum and the mean of absolute values, such as
    ``balance/layer03/c_max``. Values that are NaN or infinite (the relative gradient of attention that is still zero)
    are left out.

    Args:
        folder: log directory; one per run.
        recorder: the recorder to listen to.

    Raises:
        EquipoiseError: if TensorBoard is not installed, or ``recorder`` is not a recorder.

    Example::

        import equipoise as eq
        from equipoise.integrations.tensorboard import TensorBoard

        rec = eq.Recorder(model, laws, every=25)
        with TensorBoard("runs/bal-o", rec):
            eq.train(model, data, lr=0.05, record=rec)
    """

    def __init__(self, folder: str | Path, recorder: Recorder) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - optional dependency
        except ImportError:
            raise EquipoiseError(
                "TensorBoard is not installed", remedy="pip install 'equipoise[tensorboard]', or use rec.frame()"
            ) from None
        check_recorder(recorder)
        self.recorder = recorder
        self._writer = SummaryWriter(str(folder))
        recorder.listeners.append(self.write)

    def write(self, epoch: int, records: Sequence[Record]) -> None:
        """Add the records of one epoch to the charts.

        Args:
            epoch: the epoch.
            records: its records.
        """
        for tag, value in chart_values(records):
            if abs(value) < float("inf"):
                self._writer.add_scalar(tag, value, epoch)

    def close(self) -> None:
        """Flush the charts, and stop listening to the recorder."""
        if self.write in self.recorder.listeners:
            self.recorder.listeners.remove(self.write)
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
