"""When a row counts as broken, as a signed margin: positive means broken."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from brinell.core.classifier import Output
from brinell.ops import losses
from brinell.ops.types import Labels, Scalars


@runtime_checkable
class Goal(Protocol):
    """A signed margin over the model's answer."""

    @property
    def name(self) -> str:
        """For the manifest."""

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """Positive where the goal is reached; a tie is not a success."""


@dataclass(frozen=True)
class Misclassify:
    """Any class but the true one has the strictly largest logit."""

    name: str = "misclassify"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """Best wrong logit minus the true one."""
        return losses.margin(out.logits, y)


@dataclass(frozen=True)
class HitClass:
    """The row's target class has the strictly largest logit."""

    name: str = "hit-class"

    def margin(self, out: Output, y: Labels, t: Labels) -> Scalars:
        """Target logit minus the best other one."""
        return -losses.margin(out.logits, t)
