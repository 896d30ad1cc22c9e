"""When a row counts as broken, and by how much: the model's own decision, and a signed margin."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from brinell.core.classifier import Output
from brinell.ops import losses
from brinell.ops.types import Labels, Mask, Scalars


@runtime_checkable
class Goal(Protocol):
    """A signed margin over the model's answer."""

    @property
    def name(self) -> str:
        """For the manifest."""

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """How far the goal is reached (positive) or missed (negative)."""

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """Whether the model's decision, the class with the largest logit, meets the goal; never where one is NaN."""


@dataclass(frozen=True)
class Misclassify:
    """Any class but the true one is predicted."""

    name: str = "misclassify"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """Best wrong logit minus the true one."""
        return losses.margin(out.logits, y)

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """Another class is predicted; of tied logits the first decides, as in torch.argmax."""
        return (out.logits.argmax(1) != y) & out.logits.isfinite().all(1)


@dataclass(frozen=True)
class HitClass:
    """The row's target class is predicted."""

    name: str = "hit-class"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """Target logit minus the best other one."""
        return -losses.margin(out.logits, t)

    def reached(self, out: Output, y: Labels, t: Labels) -> Mask:
        """The target class is predicted."""
        return (out.logits.argmax(1) == t) & out.logits.isfinite().all(1)
