"""A callback for training loops: the robust accuracy of a fixed subset, every few epochs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from brinell.core.threat import Threat
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.evaluation.evaluate import evaluate
from brinell.results import Proportion, Run

PLAN, SAMPLES = "fast", 256


@dataclass(frozen=True)
class MeasuredEpoch:
    """What was measured after an epoch: clean and robust accuracy with their intervals, and the Run."""

    epoch: int
    clean_accuracy: Proportion
    robust_accuracy: Proportion
    run: Run


class RobustAccuracy:
    """A callback `monitor(model, epoch)` that measures a model on the same `n` samples every `every` epochs.

    The plan is `fast` without its audit, which takes seconds and gives an upper bound: it shows how training goes, and
    is no result to report. The model is measured in evaluation mode and returns to the modes that its modules had. No
    generator of random numbers and no gradient of a weight changes, so training goes on as if nothing had been
    measured. `log` is called with (run, epoch), e.g. `brinell.integrations.TensorBoard("logs")`. The Runs are stored in
    the folders epoch-0, epoch-5, … of `out`, if it is given. `options` are options of `brinell.evaluate`.

    >>> import brinell
    >>> from brinell.models.demo import demo_net
    >>> monitor = RobustAccuracy("demo", brinell.Linf(0.1), every=2, n=8, plan="fgsm")
    >>> [monitor(demo_net(), epoch) is None for epoch in range(4)], [m.epoch for m in monitor.history]
    ([True, False, True, False], [1, 3])
    """

    def __init__(
        self, data: Any, threat: Threat, *, every: int = 1, n: int | None = SAMPLES, plan: Any = PLAN,
        log: Callable[[Run, int], Any] | None = None, out: str | os.PathLike[str] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(
                expected="every, a whole number of epochs above 0", got=f"{every}", remedy="Write every=5."
            )
        self.data, self.threat, self.every = coerce.as_problem(data)[:n], coerce.as_threat(threat), every
        self.plan, self.log, self.out = plan, log, None if out is None else Path(out)
        self.options = {"progress": False, "test": False, **options}
        if plan == PLAN:
            self.options = {"audit": 0, **self.options}
        self.history: list[MeasuredEpoch] = []

    def __call__(self, model: Any, epoch: int) -> MeasuredEpoch | None:
        """Measure the model if (epoch + 1) is a multiple of `every`; epochs count from 0."""
        return self.measure(model, epoch) if (epoch + 1) % self.every == 0 else None

    def measure(self, model: Any, epoch: int) -> MeasuredEpoch:
        """Measure the model now."""
        folder = None if self.out is None else self.out / f"epoch-{epoch}"
        with evaluation_mode(model):
            run = evaluate(model, self.data, self.threat, self.plan, out=folder, **self.options)
        found = MeasuredEpoch(epoch, run.clean_accuracy, run.robust_accuracy, run)
        self.history.append(found)
        if self.log is not None:
            self.log(run, epoch)
        return found


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Put a module into evaluation mode, and each of its modules back into its own mode afterwards."""
    modes = [(m, m.training) for m in model.modules()] if isinstance(model, nn.Module) else []
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
