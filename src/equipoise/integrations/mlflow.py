"""Records as MLflow metrics (``pip install equipoise[mlflow]``)."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from equipoise.errors import EquipoiseError
from equipoise.integrations.validation import check_recorder
from equipoise.training.recording import Record, chart_values

if TYPE_CHECKING:
    from equipoise.training.recorder import Recorder


class MLflow:
    """Log a recorder's records as metrics of the active MLflow run.

    Names and values are those of :class:`~equipoise.integrations.tensorboard.TensorBoard`. The step of a metric is the
    epoch of the record.

    Args:
        recorder: the recorder to listen to.
        run_id: id of the run; by default the active run.

    Raises:
        EquipoiseError: if MLflow is not installed, or ``recorder`` is not a recorder.

    Example::

        import equipoise as eq
        import mlflow
        from equipoise.integrations.mlflow import MLflow

        rec = eq.Recorder(model, laws, every=25)
        with mlflow.start_run(), MLflow(rec):
            eq.train(model, data, lr=0.05, record=rec)
    """

    def __init__(self, recorder: Recorder, run_id: str | None = None) -> None:
        try:
            import mlflow  # noqa: PLC0415 - optional dependency
        except ImportError:
            raise EquipoiseError(
                "MLflow is not installed", remedy="pip install 'equipoise[mlflow]', or use rec.frame()"
            ) from None
        check_recorder(recorder)
        self._log_metrics = mlflow.log_metrics
        self.recorder, self.run_id = recorder, run_id
        recorder.listeners.append(self.write)

    def write(self, epoch: int, records: Sequence[Record]) -> None:
        """Log the records of one epoch.

        Args:
            epoch: the epoch.
            records: its records.
        """
        values = {tag: value for tag, value in chart_values(records) if abs(value) < float("inf")}
        self._log_metrics(values, step=epoch, run_id=self.run_id)

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
