"""A Lightning callback around `RobustAccuracy`; Lightning is imported when it is made."""

from typing import Any

from brinell.errors import MissingExtra, import_extra
from brinell.integrations.callback import RobustAccuracy


def lightning_callback(monitor: RobustAccuracy) -> Any:
    """Return a Lightning callback that measures at the end of training epochs and logs the accuracies.

    It logs `robust_accuracy`, `robust_accuracy_low`, `robust_accuracy_high` and `robust_clean_accuracy` with
    `pl_module.log_dict`, so that loggers and `ModelCheckpoint(monitor="robust_accuracy")` see them. On several devices
    every process measures the same samples and logs the same numbers.
    """
    base: Any = _lightning().Callback

    class RobustAccuracyCallback(base):  # type: ignore[misc]
        """Measures the robust accuracy at the end of an epoch."""

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            found = monitor(pl_module, trainer.current_epoch)
            if found is not None:
                robust = found.robust_accuracy
                pl_module.log_dict(
                    {
                        "robust_accuracy": robust.value,
                        "robust_accuracy_low": robust.low,
                        "robust_accuracy_high": robust.high,
                        "robust_clean_accuracy": found.clean_accuracy.value,
                    }
                )

    return RobustAccuracyCallback()


def _lightning() -> Any:
    """Return `lightning.pytorch`, or the older package `pytorch_lightning`."""
    try:
        return import_extra("lightning.pytorch", "lightning", "Lightning, for its callbacks")
    except MissingExtra:
        return import_extra("pytorch_lightning", "lightning", "Lightning, for its callbacks")
