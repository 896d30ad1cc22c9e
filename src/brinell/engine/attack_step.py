"""One attack step: query the model, keep the best points, and call the attack's `step`."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.core.attack import AnyAttack, Batch, Requires, Response
from brinell.core.criterion import Criterion
from brinell.core.model import Output
from brinell.core.threat import TOLERANCE, Ball
from brinell.engine.best_so_far import Best
from brinell.engine.oracle import Oracle
from brinell.engine.slots import Slots
from brinell.ops.rowwise import flat, may_branch, where

# A point whose distance is below this share of eps is strictly inside the ball.
INSIDE = 0.99


@dataclass(frozen=True)
class BestSoFar:
    """The rule for the point to keep: the nearest adversarial (`nearest`), else the one of largest margin within eps.

    The rule tests every queried point itself and trusts no attack. With `failed`, the point of largest margin is kept
    even if it is not adversarial: a randomised model may be fooled by it later. An adversarial whose margin is at most
    `slack` times the spread (max − min) of the logits sets `Best.found`, not `Best.broken`.
    """

    criterion: Criterion
    nearest: bool
    failed: bool = False
    slack: float = 0.0

    def update(self, best: Best, x: Tensor, a: Response, p: Batch, ball: Ball, live: Tensor, attempt: Tensor) -> Best:
        """Return the best points after the response `a` to a query at `x`; rows that are not `live` do not change."""
        output = Output(a.logits, a.reject)
        margin = self.criterion.margin(output, p.y, p.target)
        reached = self.criterion.reached(output, p.y, p.target)
        if a.tolerance is not None:
            # A tie up to rounding is a claim, which float32 decides.
            reached = reached | (margin > -a.tolerance)
        still = torch.where(live, 0, best.still)
        changes = reached | (margin > best.margin) | (a.loss > best.loss) | (margin == best.last)
        if self.failed:
            changes = changes | (margin > best.adv_margin)
        # Most queries of a random search change nothing: on a CPU they are not measured.
        if not may_branch(live) or bool((live & changes).any()):
            best, still = self._measured(best, x, a, p, ball, live, attempt, margin, reached)
        return replace(
            best,
            non_finite=best.non_finite | (live & ~a.logits.isfinite().all(1)),
            last=torch.where(live, margin, best.last),
            still=still,
            longest=torch.maximum(best.longest, still),
        )

    def _measured(
        self, best: Best, x: Tensor, a: Response, p: Batch, ball: Ball, live: Tensor, attempt: Tensor,
        margin: Tensor, reached: Tensor,
    ) -> tuple[Best, Tensor]:  # fmt: skip
        """Return the best points after measuring the distances of x, and the number of queries that stood still."""
        # In float32: this only steers. Verification measures the distance again in float64.
        distance = ball.norm.size(x - p.x)
        allowed, near = ball.allows(p.x, x), distance <= ball.eps * (1 + TOLERANCE)
        adversarial = live & allowed & reached
        within = adversarial & near
        broken = within & (margin > self.slack * (a.logits.amax(1) - a.logits.amin(1))) if self.slack else within
        if self.nearest:
            keep = adversarial & (distance < best.distance)
            if self.slack:
                # A point that surely breaks goes before one that is only near; among those the nearest is kept.
                keep = torch.where(best.broken, keep & broken, keep | broken)
        else:
            keep = (live & allowed & near if self.failed else within) & (margin > best.adv_margin)
        still = self._still(best, a, ball, live, margin, distance)
        if not may_branch(live) or bool((adversarial | keep).any()):
            best = replace(
                best,
                x=where(keep, x, best.x),
                found=best.found | adversarial,
                broken=best.broken | broken,
                adv_margin=torch.where(keep, margin, best.adv_margin),
                adv_pred=torch.where(keep, a.logits.argmax(1), best.adv_pred),
                distance=torch.where(keep, distance, best.distance),
                first=torch.where(broken & ~best.broken, best.forwards, best.first),
                attempt=torch.where(keep, attempt, best.attempt),
            )
        # A minimum-norm attack passes through points outside the ball; their margins and losses count too.
        counts = live & allowed & (near | self.nearest)
        best = replace(
            best,
            margin=torch.where(counts & (margin > best.margin), margin, best.margin),
            loss=torch.where(counts & (a.loss > best.loss), a.loss, best.loss),
        )
        return best, still

    def _still(self, best: Best, a: Response, ball: Ball, live: Tensor, margin: Tensor, distance: Tensor) -> Tensor:
        """Return the number of queries in a row that left the margin unchanged inside the ball."""
        stands = live & (margin == best.last)
        if may_branch(live) and not bool(stands.any()):
            return torch.where(live, 0, best.still)
        # On the surface of the ball an attack may rightly come to rest, but not without a gradient.
        free = (distance < INSIDE * ball.eps) | self.nearest
        if a.grad is not None:
            free = free | (flat(a.grad).abs().amax(1) == 0)
        return torch.where(live, (best.still + 1) * (free & stands), best.still)


@dataclass(frozen=True)
class AttackStep:
    """A pure function from slots to slots that does one attack step for each entry of `pattern`."""

    oracle: Oracle
    attack: AnyAttack
    best_so_far: BestSoFar
    ball: Ball
    pattern: tuple[Requires, ...]
    draws: int = 1
    early_exit: bool = True
    observe: Callable[[Slots, Response], None] | None = None

    def __call__(self, slots: Slots) -> Slots:
        for requires in self.pattern:
            batch, state, aim = slots.batch, slots.state, slots.state.aim
            target = batch.target if aim is None else aim
            response = self.oracle.query(state.x, batch.y, target, self.attack.loss, requires, self.draws, batch.id)
            if self.observe is not None:
                self.observe(slots, response)
            slots = self.update(slots, response, requires)
        return slots

    def update(self, slots: Slots, response: Response, requires: Requires) -> Slots:
        """Return the slots after a response, with updated best points and the attack's next state."""
        live, batch, ball = slots.live, slots.batch, replace(self.ball, eps=slots.eps)
        exploring = slots.state.exploring
        candidates = live if exploring is None else live & ~exploring
        best = self.best_so_far.update(slots.best, slots.state.x, response, batch, ball, candidates, slots.attempt)
        best = replace(
            best,
            forwards=best.forwards + live * self.draws,
            backwards=best.backwards + live * (response.backwards * self.draws),
        )
        state = self.attack.step(slots.state, response, batch, ball)
        # Rows that are not live move on until they are replaced, and nobody looks; only their counter must stand still.
        state = replace(state, t=torch.where(live, state.t, slots.state.t))
        over = state.t >= self.attack.queries
        if self.early_exit:
            over = over | best.broken
        return replace(slots, state=state, best=best, live=live & ~over)
