"""`Misclassification` and `TargetedMisclassification`: what an attack looks for."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from brinell.compat.foolbox.models import plain
from brinell.errors import PlanError


@dataclass(frozen=True)
class Misclassification:
    """The criterion that any class but the label is predicted."""

    labels: Tensor


@dataclass(frozen=True)
class TargetedMisclassification:
    """The criterion that the target class is predicted."""

    target_classes: Tensor


def labels_of(criterion: Any) -> tuple[Tensor, bool]:
    """Return the labels or target classes of a criterion, and whether they are targets."""
    if isinstance(criterion, TargetedMisclassification):
        return plain(criterion.target_classes), True
    given = criterion.labels if isinstance(criterion, Misclassification) else criterion
    if isinstance(plain(given), Tensor):
        return plain(given), False
    raise PlanError(
        expected="labels, Misclassification or TargetedMisclassification",
        got=type(criterion).__name__,
        remedy="For another goal write a brinell.core.criterion.Criterion.",
    )
