"""Auto conjugate gradient: conjugate directions with the step-size rules of Auto-PGD."""

from dataclasses import dataclass, replace

import torch

from brinell.attacks._parameters import check_loss, check_whole
from brinell.attacks.gradient.apgd import APGD, APGDState
from brinell.core.attack import Attack, Batch, Response
from brinell.core.threat import Ball
from brinell.ops.norms import NORMS, Norm
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Mask, Points, Scalars


@dataclass(frozen=True)
class ACGState(APGDState):
    """State of ACG: that of APGD, and the gradient and the direction of the step before."""

    g_prev: Points
    direction: Points


def _dot(a: Points, b: Points) -> Scalars:
    return (flat(a) * flat(b)).sum(1)


def conjugate(grad: Points, g_prev: Points, direction: Points) -> Points:
    """Return the next conjugate direction of Hestenes & Stiefel 1952, for a loss that is maximised.

    It is orthogonal to the change y of the gradient: g + β s, with β = −⟨g, y⟩ / ⟨s, y⟩. The length of the last
    direction s does not matter. Rows with ⟨s, y⟩ = 0 take the gradient.

    >>> conjugate(torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]]), torch.tensor([[2.0, 0.0]]))
    tensor([[1., 1.]])
    """
    y = g_prev - grad
    along = _dot(direction, y)
    beta = torch.where(along == 0, 0.0, -_dot(grad, y) / along)
    # A quotient that overflows gives no direction.
    return grad + rows(beta.nan_to_num(0.0, 0.0, 0.0), grad) * direction


@dataclass(frozen=True)
class ACG(Attack[ACGState]):
    """Auto-PGD with conjugate directions instead of gradients and momentum: its iterates are more diverse.

    Method: the steepest step along g + β s, where s is the last direction and β that of Hestenes & Stiefel. The step is
    2 eps at first and is halved by the rules of `APGD`; then the attack resumes at the best point, with its gradient as
    direction. Cost per step: one forward and one backward pass; one more of each for the start.
    Reference: Yamamura et al. 2022, Diversified adversarial attacks based on conjugate gradient method.
    Limits: those of gradients, as for APGD; no L1, where steps are sparse.

    >>> ACG(steps=100).queries
    101
    """

    steps: int = 100
    loss: str = "margin"
    rho: float = 0.75

    def __post_init__(self) -> None:
        check_loss(self.loss)
        check_whole(steps=self.steps)

    @property
    def name(self) -> str:
        return f"acg-{self.loss}"

    @property
    def norms(self) -> tuple[Norm, ...]:
        return NORMS["Linf"], NORMS["L2"]

    @property
    def _rules(self) -> APGD:
        return APGD(self.steps, self.loss, self.rho)

    def init(self, p: Batch, ball: Ball) -> ACGState:
        """Return the state at AutoAttack's random start or at the explicit start."""
        start = self._rules.init(p, ball)
        return ACGState(**vars(start), g_prev=torch.zeros_like(start.x), direction=torch.zeros_like(start.x))

    def step(self, s: ACGState, a: Response, p: Batch, ball: Ball) -> ACGState:
        before = s.step
        s, x, grad = self._rules.resume(s, replace(a, grad=ball.masked(a.gradient)))
        fresh: Mask = (s.t == 0) | (s.step < before)
        direction = where(fresh, grad, conjugate(grad, s.g_prev, s.direction))
        ahead = ball.project(p.x, x + rows(s.step, x) * ball.steepest(direction))
        return replace(s, t=s.t + 1, x=ahead, x_prev=x, g_prev=grad, direction=direction)
