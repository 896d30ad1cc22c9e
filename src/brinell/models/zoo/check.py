"""Whether a loaded model classifies as well as published."""

from dataclasses import dataclass

import torch

from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.errors import InputError

__all__ = ["CheckedAccuracy", "check"]

# Published accuracies have two decimals of a percent; on all images, rounding and hardware may move a few.
ROUNDING, WHOLE, SIGMAS = 0.0005, 10_000, 4.0


@dataclass(frozen=True)
class CheckedAccuracy:
    """A clean accuracy beside the published one, and how far apart they may be."""

    name: str
    n: int
    accuracy: float
    published: float | None
    margin: float

    @property
    def ok(self) -> bool:
        """Whether they agree."""
        return self.published is not None and abs(self.accuracy - self.published) <= self.margin


def check(classifier: Classifier, problem: Problem, published: float | None, *, batch: int = 100) -> CheckedAccuracy:
    """The clean accuracy on these samples.

    Method: on the whole test set it must agree to 0.05 points; on fewer samples within four standard deviations of a
    binomial draw, which cannot find small differences.
    Cost: one forward a sample.
    """
    right = n = 0
    for chunk in problem.chunks(batch):
        with torch.no_grad():
            logits = classifier.forward(chunk.x.to(classifier.device)).logits
        right += int((logits.argmax(1).cpu() == chunk.y).sum())
        n += len(chunk)
    if n == 0:
        raise InputError(expected="at least one sample", got="none", remedy="Check --data and --n.")
    p = right / n if published is None else published
    spread = 0.0 if n >= WHOLE else SIGMAS * (p * (1 - p) / n) ** 0.5
    return CheckedAccuracy(classifier.name, n, right / n, published, ROUNDING + spread)
