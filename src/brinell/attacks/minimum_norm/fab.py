"""Fast adaptive boundary attack: the smallest distance at which a sample breaks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.attacks import _parameters as _check
from brinell.core.attack import Attack, AttackState, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError, one_of
from brinell.ops.losses import margin
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Labels, Mask, Points, Scalars

# Lower bounds of the reference, which keep a vanished gradient and a point on the plane from dividing by zero.
FLAT, NEAR = 1e-12, 1e-8


@dataclass(frozen=True)
class State(AttackState):
    """The point to ask about: after an even number of answers where to step from, else a step's result to look at.

    `explores`: rows whose point only serves to find the way and is not to be recorded.
    """

    t: Labels
    x: Points
    explores: Mask

    @property
    def exploring(self) -> Mask:
        """Rows whose point was proposed before the gradient step."""
        return self.explores


@dataclass(frozen=True)
class FAB(Attack[State]):
    """Walks along the decision boundary towards the clean point; the engine keeps the nearest adversarial on the way.

    Method: the boundary is linearised at x; x and the clean point x0 are both projected on that hyperplane within the
    box, each projection is overshot by `eta`, and the two are mixed with at most `alpha_max` of the clean one's. A
    misclassified result is drawn back, x0 + `beta` (x − x0), before the next step. Targeted: the boundary to the row's
    target class. Untargeted: of all classes the one whose hyperplane is nearest. The first restart starts at x0, later
    ones at distance eps / 2. Misclassified means any class but the true one, targeted or not.
    Cost per step: one forward and one backward where it begins (untargeted: K backwards), one forward to look at its
    result, as in AutoAttack's code.
    Reference: Croce & Hein 2020, "Minimally distorted adversarial examples with a fast adaptive boundary attack",
    without the final search, as in AutoAttack. `quirks="autoattack"` follows its code in one more thing: points drawn
    back are not recorded, although the nearest adversarial is often among them (distances up to 4 % larger on average).
    Limits: untargeted, costs a backward per class, too much for many classes; a locally flat or saturated logit
    makes the linearised boundary meaningless.

    >>> FAB().name, FAB(targeted=True).name, FAB(steps=50).queries
    ('fab', 'fab-t', 100)
    """

    steps: int = 100
    targeted: bool = False
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    quirks: str | None = None
    minimum_norm = True

    def __post_init__(self) -> None:
        one_of("quirks", self.quirks, (None, "autoattack"))
        _check.positive(steps=self.steps, alpha_max=self.alpha_max, eta=self.eta, beta=self.beta)
        for name, value in (("alpha_max", self.alpha_max), ("beta", self.beta)):
            if value > 1:
                raise PlanError(
                    expected=f"{name} of at most 1", got=f"{name} = {value}", remedy="Leave it out to get the default."
                )

    @property
    def name(self) -> str:
        """As in AutoAttack."""
        return "fab-t" if self.targeted else "fab"

    @property
    def loss(self) -> str:
        """Its gradient is the normal of the target's hyperplane; untargeted it only goes on record."""
        return "minimum-margin" if self.targeted else "margin"

    @property
    def requires(self) -> Requires:
        """One gradient, or those of all classes."""
        return Requires.GRAD if self.targeted else Requires.JACOBIAN

    @property
    def query_pattern(self) -> tuple[Requires, Requires]:
        """Gradients to step by, then a look at the result."""
        return self.requires, Requires.LOGITS

    @property
    def queries(self) -> int:
        """Where every step begins, and what it comes to."""
        return 2 * self.steps

    def init(self, p: Batch, ball: Ball) -> State:
        """The clean point, from the second restart a random point at distance eps / 2, or where told."""
        lo, hi = ball.bounds(p.x)
        x = _first(p, ball) if p.start is None else p.start
        zero = torch.zeros_like(p.y)
        return State(zero, x.clamp(lo, hi), torch.zeros_like(zero, dtype=torch.bool))

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """With gradients a step; without, a look at its result, which is drawn back where it is misclassified."""
        if a.backwards:
            return State(s.t + 1, self._ahead(s.x, a, p, ball), torch.zeros_like(s.explores))
        back = margin(a.logits, p.y) > 0
        drawn = p.x + self.beta * (s.x - p.x)
        return State(s.t + 1, where(back, drawn, s.x), back if self.quirks else torch.zeros_like(back))

    def _ahead(self, x: Points, a: Response, p: Batch, ball: Ball) -> Points:
        """The mix of both overshot projections on the linearised boundary."""
        f, w = self._boundary(a, p, ball)
        # The plane is {u : f + w·(u − x) = 0}; the clean point's own gap follows from the same f and w.
        gaps = torch.cat([-f, flat(w.double() * (x - p.x)).sum(1) - f])
        lo, hi = ball.bounds(p.x)
        d = ball.norm.to_hyperplane(
            torch.cat([w, w]), gaps, torch.cat([lo - x, lo - p.x]), torch.cat([hi - x, hi - p.x])
        )
        size = ball.norm.size(d).clamp(min=NEAR)
        (here, clean), (from_here, from_clean) = d.chunk(2), size.chunk(2)
        share = rows((from_here / (from_here + from_clean)).clamp(max=self.alpha_max), x)
        return ((1 - share) * (x + self.eta * here) + share * (p.x + self.eta * clean)).clamp(lo, hi)

    def _boundary(self, a: Response, p: Batch, ball: Ball) -> tuple[Scalars, Points]:
        """How far the chosen class is behind the true one (f < 0: behind), and the gradient of that."""
        free = 1.0 if ball.mask is None else ball.mask
        if self.targeted:
            f, w = a.loss, a.gradient * free
        else:
            f, w = _nearest(a, p.y, free, ball)
        # A row whose logits are not finite has no plane to go to: a gap of zero lets it stand still.
        return torch.where(f.isfinite(), f, 0.0).double(), w


def _first(p: Batch, ball: Ball) -> Points:
    if p.restart is None:
        return p.x
    radius = ball.within_box(p.x).eps if bool(ball.eps.isinf().any()) else ball.eps
    t = ball.norm.start(p.key, tuple(p.x.shape[1:]), radius)
    away = p.x + rows(radius / 2 / ball.norm.size(t).clamp(min=FLAT), t) * t
    return where(p.restart > 0, away, p.x)


def _nearest(a: Response, y: Labels, free: Tensor | float, ball: Ball) -> tuple[Scalars, Points]:
    """Logit difference and its gradient for the class whose hyperplane is nearest."""
    assert a.jacobian is not None, "this attack did not ask for the gradients of all logits"
    row = torch.arange(len(y), device=y.device)
    f = a.logits - a.logits[row, y][:, None]
    w = (a.jacobian - a.jacobian[row, y][:, None]) * free
    distance = f.abs() / (ball.norm.dual_size(w.flatten(0, 1)).view_as(f) + FLAT)
    own = torch.zeros_like(f, dtype=torch.bool).scatter(1, y[:, None], True)
    chosen = torch.where(own | ~distance.isfinite(), torch.inf, distance).argmin(1)
    return f[row, chosen], w[row, chosen]
