"""When a row counts as broken, and by how much: the model's own decision, and a signed margin."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from brinell.core.model import Output
from brinell.errors import ModelError
from brinell.ops import losses
from brinell.ops.types import Labels, Mask, Scalars


@runtime_checkable
class Criterion(Protocol):
    """A signed margin over the model's answer."""

    @property
    def name(self) -> str:
        """For the manifest."""

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """How far the goal is reached (positive) or missed (negative)."""

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """Whether the model's decision, the class with the largest logit, meets the goal; never where one is NaN."""


@dataclass(frozen=True)
class Misclassified:
    """Any class but the true one is predicted."""

    name: str = "misclassify"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """Best wrong logit minus the true one."""
        return losses.margin(out.logits, y)

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """Another class is predicted; of tied logits the first decides, as in torch.argmax."""
        return (out.logits.argmax(1) != y) & out.logits.isfinite().all(1)


def _score(out: Output) -> Scalars:
    if out.reject is None:
        raise ModelError(
            expected="a model with a detector, which this goal is about",
            got="one without",
            remedy="Give it one: brinell.wrap(net, detector=…).",
        )
    return out.reject


@dataclass(frozen=True)
class Evades:
    """Any class but the true one is predicted, and the detector accepts the input.

    Both parts are measured in logits if the detector's score is; `brinell.calibrated` brings it to that scale.
    """

    name: str = "evade"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """The smaller of the classifier's margin and the score's distance below rejection."""
        return torch.minimum(losses.margin(out.logits, y), -_score(out))

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """Misclassified and accepted; a score that is NaN accepts nothing."""
        return Misclassified().reached(out, y, t) & (_score(out) <= 0)


@dataclass(frozen=True)
class Triggers:
    """Any class but the true one is predicted, and the detector rejects the input: the goal of the inverted test.

    Attacks that steer around a detector reach it on `brinell.models.inverted(classifier)`, where it is `Evades`.
    """

    name: str = "trip"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """The smaller of the classifier's margin and the score's distance above rejection."""
        return torch.minimum(losses.margin(out.logits, y), _score(out))

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """Misclassified and rejected."""
        return Misclassified().reached(out, y, t) & (_score(out) > 0)


@dataclass(frozen=True)
class Targeted:
    """The row's target class is predicted."""

    name: str = "hit-class"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """Target logit minus the best other one."""
        return -losses.margin(out.logits, t)

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """The target class is predicted."""
        return (out.logits.argmax(1) == t) & out.logits.isfinite().all(1)


CRITERIA: dict[str, Criterion] = {g.name: g for g in (Misclassified(), Evades(), Triggers(), Targeted())}
"""By the name that a Run stores."""
