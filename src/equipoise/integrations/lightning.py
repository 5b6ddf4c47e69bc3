"""The recorder as a Lightning callback (``pip install equipoise[lightning]``)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from equipoise.train.recorder import Recorder


def _callback() -> Any:
    """Lightning's base class under its new or its old name; a plain class where it is not installed."""
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(f"{package}.callbacks").Callback
        except ImportError:
            continue
    return object


Callback: Any = _callback()


class RecorderCallback(Callback):  # type: ignore[misc]  # an extra, so its types may not be at hand
    """Lets a recorder see every step of a Lightning trainer.

    A record's *epoch* is the number of the optimizer's step, from 1: the same thing as an epoch where each has one
    batch, as in training on one graph. Gradients are seen when they are complete (accumulated, unscaled) and not yet
    clipped.

    Args:
        recorder: of the module that is trained, or of a network inside of it.

    Example::

        rec = eq.Recorder(module.model, laws, every=25)
        Trainer(max_epochs=1000, callbacks=[RecorderCallback(rec)]).fit(module, loader)
        rec.frame()
    """

    def __init__(self, recorder: Recorder) -> None:
        if Callback is object:
            raise EquipoiseError(
                "Lightning is not installed",
                remedy="pip install 'equipoise[lightning]', or call rec.step(epoch) in a loop of your own",
            )
        self.recorder = recorder
        self._step = 0

    def on_before_optimizer_step(self, trainer: Any, _module: Any, optimizer: Optimizer) -> None:
        """After backward, before the step."""
        self._step += 1
        self.recorder.watch(optimizer)
        metrics = trainer.callback_metrics
        scalars = {name: float(metrics[name]) for name in ("loss", "train_loss") if name in metrics}
        self.recorder.step(self._step, **scalars)

    def on_train_end(self, _trainer: Any, _module: Any) -> None:
        """All steps are taken."""
        self.recorder.close()

    def on_exception(self, _trainer: Any, _module: Any, _exception: BaseException) -> None:
        """Training ends otherwise: what is there is kept, and the module is left as it was."""
        self.recorder.close()
