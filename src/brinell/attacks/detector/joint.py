"""Any attack on classifier and detector together, through one joint loss."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from brinell.attacks._common import Wrapper
from brinell.attacks._parameters import SIGNED_MARGINS, check_positive
from brinell.attacks.gradient.apgd import APGD
from brinell.core.attack import AnyAttack, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError, one_of
from brinell.ops.rowwise import rows
from brinell.ops.types import Mask, Points, Scalars

MARGIN = APGD(loss="margin")
HOW = ("hinge", "min", "sum")
# Losses that are positive exactly where the attack succeeds.
SIGNED = (*SIGNED_MARGINS, "dlr", "dlr-targeted")


@dataclass(frozen=True)
class Joint(Wrapper[Any]):
    """A wrapper that makes an attack maximise a joint loss of its classification loss and the detector's score.

    Method: `how` combines loss and score with `weight` w. "sum" is loss − w · score. "min" is min(loss, −w · score).
    "hinge" is min(loss, 0) + w · min(−score, 0), so that a surplus in one condition does not compensate for the other;
    once the input is misclassified and accepted, "hinge" equals "min". "hinge" and "min" need a loss that is
    positive exactly at misclassified points (margins and DLR). The wrapped attack receives the joint loss and its
    gradient in the response and is otherwise unchanged; it may be a black-box attack. Cost per step: the wrapped
    attack's, plus a second backward pass if it uses gradients. Reference: Carlini & Wagner 2017, Adversarial
    examples are not easily detected (loss and detector in one objective).
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
        check_positive(weight=self.weight)
        one_of("how", self.how, HOW)
        if self.inner.requires in (Requires.JACOBIAN, Requires.DETECTOR) or self.inner.minimum_norm:
            raise PlanError(
                expected="an attack that follows one loss inside the ball",
                got=self.inner.name,
                remedy='Wrap APGD, PGD, FGSM or Square, e.g. Joint(APGD(loss="margin")).',
            )
        if self.how != "sum" and self.inner.loss not in SIGNED:
            raise PlanError(
                expected=f'a loss among {", ".join(SIGNED)}, or how="sum"',
                got=self.inner.loss,
                remedy='Write Joint(APGD(loss="margin")): a positive loss must mean a misclassified input.',
            )

    @property
    def name(self) -> str:
        return f"joint-{'' if self.how == 'hinge' else self.how + '-'}{self.inner.name}"

    @property
    def attack(self) -> AnyAttack:
        return self.inner

    @property
    def requires(self) -> Requires:
        return Requires.DETECTOR if self.inner.requires is Requires.GRAD else self.inner.requires

    @property
    def queries(self) -> int:
        return self.inner.queries

    @property
    def step_count(self) -> int | None:
        return self.inner.step_count

    def with_steps(self, steps: int) -> "Joint":
        return replace(self, inner=self.inner.with_steps(steps))

    def without_images(self) -> "Joint | None":
        inner = self.inner.without_images()
        return None if inner is None else replace(self, inner=inner)

    def init(self, p: Batch, ball: Ball) -> Any:
        return self.inner.init(p, ball)

    def step(self, s: Any, a: Response, p: Batch, ball: Ball) -> Any:
        return self.inner.step(s, self.joined(a), p, ball)

    def joined(self, a: Response) -> Response:
        """Return the model's response with loss and gradient replaced by those of the joint loss."""
        if a.reject is None:
            raise PlanError(
                expected="a model with a detector",
                got="a model without a detector",
                remedy=f"Run {self.inner.name} without Joint, or add a detector: brinell.wrap(net, detector=…).",
            )
        evasion = -self.weight * a.reject
        value, first, second = self._terms(a.loss, evasion)
        grad: Points | None = None
        if a.grad is not None:
            grad = _scaled(first, a.gradient) - self.weight * _scaled(second, a.score_gradient)
        return replace(a, loss=value, grad=grad, reject_grad=None)

    def _terms(self, loss: Scalars, evasion: Scalars) -> tuple[Scalars, Mask, Mask]:
        """Return, per row, the joint loss, whether it depends on `loss`, and whether it depends on `evasion`."""
        if self.how == "sum":
            return loss + evasion, torch.ones_like(loss) > 0, torch.ones_like(loss) > 0
        if self.how == "min":
            first = ~(loss > evasion)
            return torch.minimum(loss, evasion), first, ~first
        # Where both conditions hold the row has succeeded; it then maximises the smaller of the two.
        both = (loss > 0) & (evasion > 0)
        value = torch.where(both, torch.minimum(loss, evasion), loss.clamp(max=0) + evasion.clamp(max=0))
        return value, (loss <= 0) | both, (evasion <= 0) | both


def _scaled(on: Mask, g: Points) -> Tensor:
    return torch.where(rows(on, g), g, 0.0)
