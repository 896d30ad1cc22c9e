"""What several attacks share: states and base classes, starting points, directions, schedules and Adam."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brinell.core.attack import AnyAttack, Attack, AttackState, Batch, Requires, Response, S
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops.device_cache import table
from brinell.ops.losses import LOSSES
from brinell.ops.norms import Norm
from brinell.ops.rowwise import flat, head, may_branch, put, rows, take, where_rows
from brinell.ops.types import Labels, Mask, Points, Scalars

# Shorter gradients have no direction.
FLAT = 1e-12
# The constants of Adam (Kingma & Ba 2015).
BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class PointState(AttackState):
    """State of an attack, per row: the number `t` of responses so far and the next point `x` to query."""

    t: Labels
    x: Points


@dataclass(frozen=True)
class RunState(AttackState):
    """State of a wrapper, per row: the number `t` of responses so far, and the wrapped attack's state `run`."""

    t: Labels
    run: Any

    @property
    def x(self) -> Points:
        point: Points = self.run.x
        return point


class MinimumNormAttack(Attack[S]):
    """An attack that minimises the distance. Its name is `method`, followed by "-t" if the loss is targeted."""

    method = ""
    minimum_norm = True

    @property
    def name(self) -> str:
        return self.method + ("-t" if LOSSES[self.loss].targeted else "")


class Wrapper(Attack[S]):
    """An attack that wraps the attack `attack` and has the same loss, requirements and norms."""

    parts: tuple[str, ...] = ("attack",)

    @property
    def attack(self) -> AnyAttack:
        """The wrapped attack."""
        raise NotImplementedError

    @property
    def loss(self) -> str:
        return self.attack.loss

    @property
    def requires(self) -> Requires:
        return self.attack.requires

    @property
    def norms(self) -> tuple[Norm, ...]:
        return self.attack.norms

    @property
    def leaves_ball(self) -> bool:
        return self.attack.leaves_ball


class FixedRadius(Wrapper[Any]):
    """A wrapper of one attack of fixed radius, with that attack's queries."""

    def __post_init__(self) -> None:
        if self.attack.minimum_norm or self.attack.leaves_ball or self.attack.parts:
            name = type(self).__name__
            raise PlanError(
                expected=f"an attack of fixed radius, for {name}",
                got=self.attack.name,
                remedy=f'Write e.g. {name}(APGD(loss="margin")).',
            )

    @property
    def queries(self) -> int:
        return self.attack.queries

    @property
    def query_pattern(self) -> tuple[Requires, ...]:
        return self.attack.query_pattern


def stepped(attack: AnyAttack, which: Mask, state: Any, a: Response, p: Batch, ball: Ball) -> Any:
    """Return the states in which the rows `which` have made a step of the attack; on a CPU only these are computed."""
    if not may_branch(which):
        return where_rows(which, attack.step(state, a, p, ball), state)
    if bool(which.all()):
        return attack.step(state, a, p, ball)
    return _on_rows(which, state, lambda i: attack.step(take(state, i), take(a, i), take(p, i), ball.subset(i)))


def begun(attack: AnyAttack, which: Mask, state: Any, p: Batch, ball: Ball) -> Any:
    """Return the states in which the rows `which` are at the beginning of the attack."""
    if not may_branch(which):
        return where_rows(which, attack.init(p, ball), state)
    return _on_rows(which, state, lambda i: attack.init(take(p, i), ball.subset(i)))


def _on_rows(which: Mask, state: Any, change: Callable[[Tensor], Any]) -> Any:
    index = which.nonzero()[:, 0]
    if not len(index):
        return state
    # At least two rows: torch splits the reduction of a single long row over threads, which rounds differently.
    changed = change(index if len(index) > 1 else index.repeat(2))
    return put(state, index, head(changed, len(index)))


def misclassified(a: Response, p: Batch) -> Mask:
    """Return the mask of misclassified rows; the first of tied logits is the prediction, as in the engine."""
    return (a.logits.argmax(1) != p.y) & a.logits.isfinite().all(1)


def finite_loss(a: Response) -> Scalars:
    """Return the loss per row, with 0 in place of NaN and inf, so that these rows do not move."""
    return a.loss.nan_to_num(0.0, 0.0, 0.0)


def unit(g: Points) -> Points:
    """Return each row of g scaled to Euclidean length 1; zero rows stay zero."""
    return g / rows(flat(g).square().sum(1).sqrt().clamp(min=FLAT), g)


def start_in_box(p: Batch, ball: Ball) -> Points:
    """Return the explicit start, clipped to the box, or else the clean point."""
    return p.x if p.start is None else p.start.clamp(*ball.bounds(p.x))


def start_in_ball(p: Batch, ball: Ball, random: bool) -> Points:
    """Return the explicit start projected on the ball; without one, a random point (if `random`) or the clean point."""
    if p.start is not None:
        return ball.project(p.x, p.start)
    return ball.inside(p.x, p.key) if random else p.x


def step_with_momentum(
    project: Callable[[Points, Points], Points], x0: Points, x: Points, x_prev: Points, move: Points, alpha: Scalars
) -> Points:
    """Return P(x + α (z − x) + (1 − α)(x − x_prev)) with z = P(x + move), one α per row (Croce & Hein 2020, eq. 2)."""
    z, weight = project(x0, x + move), rows(alpha, x)
    return project(x0, x + weight * (z - x) + (1 - weight) * (x - x_prev))


def adam(m: Points, v: Points, g: Points, k: Labels, steps: int) -> tuple[Points, Points, Points, Points]:
    """Return Adam's moments m and v after step k, the bias-corrected mean, and the root mean square to divide it by."""
    m, v = BETA_1 * m + (1 - BETA_1) * g, BETA_2 * v + (1 - BETA_2) * g.square()
    mean = m / rows(1 - schedule("power", k, steps, BETA_1), m)
    return m, v, mean, (v / rows(1 - schedule("power", k, steps, BETA_2), v)).sqrt() + TINY


# Powers and cosines come from tables: computed on the fly, their last bits depend on the position in the tensor.
@table
def _table(kind: str, steps: int, first: float, last: float, device: torch.device) -> Tensor:
    i = torch.arange(steps + 1, dtype=torch.float64, device="cpu")
    values = {
        "cosine": last + (first - last) * (1 + (math.pi * i / steps).cos()) / 2,
        "exponential": first * (last / first) ** (i / steps),
        "linear": first + (last - first) * i / steps,
        "power": first**i,
    }[kind]
    return values.float().to(device)


def schedule(kind: str, i: Labels, steps: int, first: float, last: float = 0.0) -> Scalars:
    """Return the value of a schedule at step i of `steps`.

    "cosine" (half a period), "exponential" (a constant factor) and "linear" lead from `first` to `last`. "power" is
    `first` to the power i.

    >>> [schedule(k, torch.tensor([0, 1, 2]), 2, 1.0, 0.25).tolist() for k in ("cosine", "exponential", "linear")]
    [[1.0, 0.625, 0.25], [1.0, 0.5, 0.25], [1.0, 0.625, 0.25]]
    """
    table = _table(kind, steps, first, last, i.device)
    return table[i.clamp(0, len(table) - 1)]
