"""Criteria of success: whether the model's output at a point is adversarial, and with what signed margin."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from brinell.core.model import Output
from brinell.errors import ModelError
from brinell.ops import losses
from brinell.ops.types import Labels, Mask, Scalars


@runtime_checkable
class Criterion(Protocol):
    """A definition of success of an attack: a decision and a signed margin for each row of the model's output."""

    @property
    def name(self) -> str:
        """The name that a Run stores."""

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """Return, per row, by how many units of logits the criterion is met (positive) or missed (negative)."""

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """Return, per row, whether the criterion is met; false in rows where a logit is NaN or infinite."""


@dataclass(frozen=True)
class Misclassified:
    """The criterion that the model predicts any class but the true one."""

    name: str = "misclassify"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        return losses.margin(out.logits, y)

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """Return whether a class other than y is predicted; of tied logits the first wins, as in torch.argmax."""
        return (out.logits.argmax(1) != y) & out.logits.isfinite().all(1)


def _score(out: Output) -> Scalars:
    if out.reject is None:
        raise ModelError(
            expected="a model with a detector, which this criterion needs",
            got="a model without a detector",
            remedy="Add a detector: brinell.wrap(net, detector=…).",
        )
    return out.reject


@dataclass(frozen=True)
class Evades:
    """The criterion that the model predicts any class but the true one and the detector accepts the input.

    The margin is min(logit margin, −score), with the detector's score. The two are comparable if the score is
    in units of logits, as `brinell.calibrated` scales it.
    """

    name: str = "evade"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        return torch.minimum(losses.margin(out.logits, y), -_score(out))

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """Return, per row, whether the input is misclassified and accepted; false if the score is NaN."""
        return Misclassified().reached(out, y, t) & (_score(out) <= 0)


@dataclass(frozen=True)
class Triggers:
    """The criterion of the inverted test: any class but the true one is predicted and the detector rejects the input.

    To use a detector attack for it, attack `brinell.models.inverted(classifier)` with the criterion `Evades`.
    """

    name: str = "trip"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        return torch.minimum(losses.margin(out.logits, y), _score(out))

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        return Misclassified().reached(out, y, t) & (_score(out) > 0)


@dataclass(frozen=True)
class Targeted:
    """The criterion that the model predicts the row's target class."""

    name: str = "hit-class"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        return -losses.margin(out.logits, t)

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        return (out.logits.argmax(1) == t) & out.logits.isfinite().all(1)


CRITERIA: dict[str, Criterion] = {g.name: g for g in (Misclassified(), Evades(), Triggers(), Targeted())}
"""All criteria, by the name that a Run stores."""
