"""Records as Weights & Biases charts (``pip install equipoise[wandb]``)."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from equipoise.errors import EquipoiseError
from equipoise.integrations.validation import check_recorder
from equipoise.training.recording import Record, chart_values

if TYPE_CHECKING:
    from equipoise.training.recorder import Recorder


class WeightsAndBiases:
    """Log a recorder's records to a Weights & Biases run during training.

    Names and values are those of :class:`~equipoise.integrations.tensorboard.TensorBoard`. The step of the run is the
    epoch of the record.

    Args:
        run: the run, as ``wandb.init()`` returns it; it is not finished here.
        recorder: the recorder to listen to.

    Raises:
        EquipoiseError: if ``run`` cannot log, or ``recorder`` is not a recorder.

    Example::

        import equipoise as eq
        import wandb
        from equipoise.integrations.wandb import WeightsAndBiases

        rec = eq.Recorder(model, laws, every=25)
        with wandb.init(project="depth", mode="offline") as run, WeightsAndBiases(run, rec):
            eq.train(model, data, lr=0.05, record=rec)
    """

    def __init__(self, run: Any, recorder: Recorder) -> None:
        if not callable(getattr(run, "log", None)):
            raise EquipoiseError(
                f"expected a Weights & Biases run, got {type(run).__name__}", remedy="pass the result of wandb.init()"
            )
        check_recorder(recorder)
        self.run, self.recorder = run, recorder
        recorder.listeners.append(self.write)

    def write(self, epoch: int, records: Sequence[Record]) -> None:
        """Log the records of one epoch.

        Args:
            epoch: the epoch.
            records: its records.
        """
        self.run.log({tag: value for tag, value in chart_values(records) if abs(value) < float("inf")}, step=epoch)

    def close(self) -> None:
        """Stop listening to the recorder."""
        if self.write in self.recorder.listeners:
            self.recorder.listeners.remove(self.write)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
