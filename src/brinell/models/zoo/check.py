"""Compare the clean accuracy of a loaded model with the published one."""

from dataclasses import dataclass

import torch

from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.errors import InputError

# Published accuracies have two decimals of a percent. On all images, rounding and hardware may change a few.
ROUNDING, WHOLE, SIGMAS = 0.0005, 10_000, 4.0


@dataclass(frozen=True)
class CheckedAccuracy:
    """A measured and a published clean accuracy, and `margin`, the largest acceptable difference between them."""

    name: str
    n: int
    accuracy: float
    published: float | None
    margin: float

    @property
    def ok(self) -> bool:
        """Whether the two accuracies differ by at most `margin`; False if no accuracy was published."""
        return self.published is not None and abs(self.accuracy - self.published) <= self.margin


def check(classifier: Classifier, problem: Problem, published: float | None, *, batch: int = 100) -> CheckedAccuracy:
    """Measure the clean accuracy on the samples of `problem` and compare it with the published accuracy.

    Method: the two accuracies must agree within 0.05 percentage points. On fewer than 10,000 samples the tolerance
    grows by four binomial standard deviations, so small differences remain undetected.
    Cost: one forward pass per sample.
    """
    right = n = 0
    for chunk in problem.chunks(batch):
        with torch.no_grad():
            logits = classifier.forward(chunk.x.to(classifier.device)).logits
        right += int((logits.argmax(1).cpu() == chunk.y).sum())
        n += len(chunk)
    if n == 0:
        raise InputError(expected="at least one sample", got="none", remedy="Pass --data with at least one sample.")
    p = right / n if published is None else published
    spread = 0.0 if n >= WHOLE else SIGMAS * (p * (1 - p) / n) ** 0.5
    return CheckedAccuracy(classifier.name, n, right / n, published, ROUNDING + spread)
