"""Loggers: they write the numbers of a Run to TensorBoard, MLflow or Weights & Biases."""

import os
from pathlib import Path
from typing import Any

from brinell.errors import import_extra
from brinell.results import Run


def numbers(run: Run, prefix: str = "brinell/") -> dict[str, float]:
    """Return the numbers of a Run by name: accuracies with the ends of their intervals, n and cost.

    >>> import brinell
    >>> run = brinell.evaluate("demo", brinell.data.load("demo", 8), brinell.Linf(0.1), "fgsm", progress=False)
    >>> sorted(numbers(run, ""))[:4]
    ['accuracy_after/fgsm-ce', 'backwards_per_sample', 'clean_accuracy', 'forwards_per_sample']
    """
    robust, clean = run.robust_accuracy, run.clean_accuracy
    found = {
        "robust_accuracy": robust.value,
        "robust_accuracy_low": robust.low,
        "robust_accuracy_high": robust.high,
        "clean_accuracy": clean.value,
        "n": float(robust.n),
        "forwards_per_sample": run.cost.forwards_per_sample,
        "backwards_per_sample": run.cost.backwards_per_sample,
        **{f"accuracy_after/{name}": share.value for name, share in run.accuracy_after()},
    }
    return {prefix + name: float(value) for name, value in found.items()}


def texts(run: Run, prefix: str = "brinell/") -> dict[str, str]:
    """Return what is not a number: the verdict, the plan, the threat, the model and the folder of the Run."""
    identity = run.identity
    threat = identity.threat
    found = {
        "verdict": run.verdict.level,
        "plan": identity.plan.name,
        "threat": f"{threat.norm}(eps={threat.eps_text})",
        "model": identity.model.fingerprint,
        "run": str(run.path),
    }
    return {prefix + name: str(value) for name, value in found.items()}


class TensorBoard:
    """A logger for TensorBoard, given a SummaryWriter or the folder for a new one: `TensorBoard("logs")(run, step)`."""

    def __init__(self, writer: Any, prefix: str = "brinell/") -> None:
        if isinstance(writer, str | os.PathLike):
            import_extra("tensorboard", "tensorboard", "TensorBoard, for its logs")
            writer = import_extra("torch.utils.tensorboard", "tensorboard", "TensorBoard").SummaryWriter(str(writer))
        self.writer, self.prefix = writer, prefix

    def __call__(self, run: Run, step: int | None = None) -> None:
        for name, value in numbers(run, self.prefix).items():
            self.writer.add_scalar(name, value, step)
        for name, text in texts(run, self.prefix).items():
            self.writer.add_text(name, text, step)
        self.writer.flush()


class MLflow:
    """A logger for MLflow: metrics and tags of its active run; `files=True` also stores the folder of the Run."""

    def __init__(self, files: bool = False, prefix: str = "brinell/", client: Any = None) -> None:
        self.client = client or import_extra("mlflow", "mlflow", "MLflow, for its logs")
        self.files, self.prefix = files, prefix

    def __call__(self, run: Run, step: int | None = None) -> None:
        self.client.log_metrics(numbers(run, self.prefix), step=step)
        self.client.set_tags(texts(run, self.prefix))
        if self.files:
            self.client.log_artifacts(str(run.path), artifact_path=Path(run.path).name)


class WandB:
    """A logger for Weights & Biases: history and summary of a run of it (None: the active run)."""

    def __init__(self, target: Any = None, prefix: str = "brinell/") -> None:
        self.target, self.prefix = target, prefix

    def __call__(self, run: Run, step: int | None = None) -> None:
        target = self.target or import_extra("wandb", "wandb", "Weights & Biases, for its logs").run
        target.log(numbers(run, self.prefix), step=step)
        target.summary.update(texts(run, self.prefix))
