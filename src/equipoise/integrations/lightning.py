"""The recorder and the rebalancer as Lightning callbacks (``pip install equipoise[lightning]``)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from equipoise.errors import EquipoiseError
from equipoise.integrations.validation import check_rebalancer, check_recorder

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from equipoise.training.rebalancer import Rebalancer
    from equipoise.training.recorder import Recorder


def _callback_class() -> Any:
    """Return Lightning's callback class from either of its packages, or ``object`` if neither is installed."""
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(f"{package}.callbacks").Callback
        except ImportError:
            continue
    return object


Callback: Any = _callback_class()


def _require_lightning(call: str) -> None:
    if Callback is object:
        raise EquipoiseError(
            "Lightning is not installed",
            remedy=f"pip install 'equipoise[lightning]', or call {call} in your own training loop",
        )


class RecorderCallback(Callback):  # type: ignore[misc]  # an optional dependency, without types if it is missing
    """Record every due optimizer step of a Lightning trainer.

    The *epoch* of a record is the number of the optimizer step, from 1. Both agree if an epoch has one batch, as in
    full-batch training on one graph. Gradients are measured after accumulation and unscaling, before clipping. The
    metrics ``loss`` and ``train_loss`` are recorded as ``train/loss`` and ``train/train_loss`` if the module logs them.

    Args:
        recorder: a recorder of the trained module, or of a network inside it.

    Raises:
        EquipoiseError: if Lightning is not installed, or the argument is not a recorder.

    Example::

        import equipoise as eq
        from equipoise.integrations.lightning import RecorderCallback
        from lightning import Trainer

        rec = eq.Recorder(module.model, laws, every=25)
        Trainer(max_epochs=1000, callbacks=[RecorderCallback(rec)]).fit(module, loader)
        rec.frame()
    """

    def __init__(self, recorder: Recorder) -> None:
        _require_lightning("rec.step(epoch)")
        check_recorder(recorder)
        self.recorder = recorder
        self._step = 0

    def on_before_optimizer_step(self, trainer: Any, _module: Any, optimizer: Optimizer) -> None:
        """Record between the backward pass and the optimizer step."""
        self._step += 1
        self.recorder.attach(optimizer)
        metrics = trainer.callback_metrics
        scalars = {name: float(metrics[name]) for name in ("loss", "train_loss") if name in metrics}
        self.recorder.step(self._step, **scalars)

    def on_train_end(self, _trainer: Any, _module: Any) -> None:
        """Close the recorder."""
        self.recorder.close()

    def on_exception(self, _trainer: Any, _module: Any, _exception: BaseException) -> None:
        """Close the recorder; it keeps its records, and the module loses its hooks."""
        self.recorder.close()


class RebalancerCallback(Callback):  # type: ignore[misc]  # an optional dependency, without types if it is missing
    """Rebalance the network before every due optimizer step of a Lightning trainer, before gradients are clipped.

    Put it before a :class:`RecorderCallback` in the list of callbacks, so that the recorder measures the step that is
    taken.

    Args:
        rebalancer: a rebalancer of the trained module, or of a network inside it. The optimizer of each step is
            attached to it.

    Raises:
        EquipoiseError: if Lightning is not installed, or the argument is not a rebalancer.

    Example::

        import equipoise as eq
        from equipoise.integrations.lightning import RebalancerCallback
        from lightning import Trainer

        rebalancer = eq.Rebalancer(laws, every=10)
        Trainer(max_epochs=1000, callbacks=[RebalancerCallback(rebalancer)]).fit(module, loader)
    """

    def __init__(self, rebalancer: Rebalancer) -> None:
        _require_lightning("rebalancer.step()")
        check_rebalancer(rebalancer)
        self.rebalancer = rebalancer

    def on_before_optimizer_step(self, _trainer: Any, _module: Any, optimizer: Optimizer) -> None:
        """Rebalance between the backward pass and the optimizer step."""
        self.rebalancer.attach(optimizer)
        self.rebalancer.step()
