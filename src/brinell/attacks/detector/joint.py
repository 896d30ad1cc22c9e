"""Any attack on classifier and detector together: one loss out of two."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from brinell.attacks import _parameters as _check
from brinell.attacks._wrapper import Wrapper
from brinell.attacks.gradient.apgd import APGD
from brinell.core.attack import AnyAttack, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError, one_of
from brinell.ops.rowwise import rows
from brinell.ops.types import Mask, Points, Scalars

MARGIN = APGD(loss="margin")
HOW = ("hinge", "min", "sum")
# Losses that are positive exactly where the aim is reached, so that what is reached can be left alone.
SIGNED = ("margin", "dlr", "minimum-margin", "dlr-targeted", "margin-towards")


@dataclass(frozen=True)
class Joint(Wrapper[Any]):
    """Makes an attack maximise a joint loss: its own and, times `weight`, minus the detector's score.

    Method: "hinge" adds what is missing to either aim, min(loss, 0) + w · min(−score, 0), so that neither can buy the
    other; "min" follows the one that is further off; "sum" is the plain loss − w · score. The first two need a loss
    whose sign says whether the aim is reached (margins and DLR). The attack inside sees the joint loss and its gradient
    as the answer and is otherwise unchanged; one without gradients remains one. Cost per step: as the attack inside,
    with a second backward where it follows gradients. Reference: Carlini & Wagner 2017, Adversarial examples are not
    easily detected (loss and detector in one objective).
    Limits: one weight between classifier and detector rarely fits all samples, and the two gradients can cancel.

    >>> Joint(APGD(50, "margin")).queries, Joint(how="min").name
    (51, 'joint-min-apgd-margin')
    """

    inner: AnyAttack = MARGIN
    weight: float = 1.0
    how: str = "hinge"
    parts = ("inner",)
    joins_detector = True

    def __post_init__(self) -> None:
        _check.positive(weight=self.weight)
        one_of("how", self.how, HOW)
        if self.inner.requires in (Requires.JACOBIAN, Requires.DETECTOR) or self.inner.minimum_norm:
            raise PlanError(
                expected="an attack that follows one loss inside the ball",
                got=self.inner.name,
                remedy="Use APGD, PGD, FGSM or Square.",
            )
        if self.how != "sum" and self.inner.loss not in SIGNED:
            raise PlanError(
                expected=f'a loss among {", ".join(SIGNED)}, or how="sum"',
                got=self.inner.loss,
                remedy="The sign of the others does not say whether the aim is reached.",
            )

    @property
    def name(self) -> str:
        """How, and the attack inside."""
        return f"joint-{'' if self.how == 'hinge' else self.how + '-'}{self.inner.name}"

    @property
    def attack(self) -> AnyAttack:
        """The attack inside."""
        return self.inner

    @property
    def requires(self) -> Requires:
        """The detector's gradient where the attack follows one."""
        return Requires.DETECTOR if self.inner.requires is Requires.GRAD else self.inner.requires

    @property
    def queries(self) -> int:
        """As the attack inside."""
        return self.inner.queries

    @property
    def step_count(self) -> int | None:
        """That of the attack inside."""
        return self.inner.step_count

    def with_steps(self, steps: int) -> "Joint":
        """Change the number of steps of the attack inside."""
        return replace(self, inner=self.inner.with_steps(steps))

    def without_images(self) -> "Joint | None":
        """The same with the stand-in of the attack inside, if it has one."""
        inner = self.inner.without_images()
        return None if inner is None else replace(self, inner=inner)

    def init(self, p: Batch, ball: Ball) -> Any:
        """As the attack inside."""
        return self.inner.init(p, ball)

    def step(self, s: Any, a: Response, p: Batch, ball: Ball) -> Any:
        """A step of the attack inside on the joint loss."""
        return self.inner.step(s, self.joined(a), p, ball)

    def joined(self, a: Response) -> Response:
        """The answer with the joint loss and its gradient."""
        if a.reject is None:
            raise PlanError(
                expected="a model with a detector", got="one without", remedy="Use the attack inside by itself."
            )
        hidden = -self.weight * a.reject
        value, first, second = self._parts(a.loss, hidden)
        grad: Points | None = None
        if a.grad is not None:
            grad = _scaled(first, a.gradient) - self.weight * _scaled(second, a.score_gradient)
        return replace(a, loss=value, grad=grad, reject_grad=None)

    def _parts(self, loss: Scalars, hidden: Scalars) -> tuple[Scalars, Mask, Mask]:
        """The joint value, and whether each of the two parts moves it."""
        if self.how == "sum":
            return loss + hidden, torch.ones_like(loss) > 0, torch.ones_like(loss) > 0
        if self.how == "min":
            first = ~(loss > hidden)
            return torch.minimum(loss, hidden), first, ~first
        # Where both are reached the row is broken; it then goes on as if neither were, deeper into its aim.
        both = (loss > 0) & (hidden > 0)
        value = torch.where(both, torch.minimum(loss, hidden), loss.clamp(max=0) + hidden.clamp(max=0))
        return value, (loss <= 0) | both, (hidden <= 0) | both


def _scaled(on: Mask, g: Points) -> Tensor:
    return torch.where(rows(on, g), g, 0.0)
