"""Carlini and Wagner's L2 attack: Adam in a space without box, and a search over the weight of the margin."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from brinell.attacks import _parameters as _check
from brinell.attacks.minimum_norm import _tradeoff
from brinell.attacks.minimum_norm._common import ahead, aimed, begin, fooled, free, power
from brinell.core.attack import Attack, AttackState, Batch, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops.norms import L2, Norm
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Labels, Points

# The box is widened by this much in the space of the hyperbolic tangent, so that its faces are not infinitely far.
INSIDE = 0.999999
BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class State(AttackState):
    """The point asked about, its preimage, Adam's moments, and the search over the constant."""

    t: Labels
    x: Points
    w: Points
    m: Points
    v: Points
    search: _tradeoff.Search


@dataclass(frozen=True)
class CW(Attack[State]):
    """Minimises ‖d‖₂² + c · max(margin, 0) for ever better c; the engine keeps the nearest adversarial of all rounds.

    Method: x = ½ + ½ tanh(w); Adam on w; c starts at `first`, × 10 until a round succeeds, then bisected; a round ends
    early when the objective stops falling. Cost: at most `steps` forwards and backwards in each of `rounds` rounds.
    Reference: Carlini & Wagner 2017, "Towards evaluating the robustness of neural networks", with the numbers of
    Foolbox 2.4 and the ten rounds of "How to compare adversarial robustness of classifiers from a global perspective".
    Limits: costs ten searches of a thousand steps; with fewer its constant is coarse and distances too large.
    Saturated logits starve its gradient.

    >>> CW(steps=100, rounds=5).queries
    500
    """

    steps: int = 1000
    rounds: int = 10
    rate: float = 5e-3
    first: float = 1e-2
    loss: str = "margin"
    minimum_norm = True
    norms: ClassVar[tuple[Norm, ...]] = (L2,)

    def __post_init__(self) -> None:
        _check.margins(self.loss)
        _check.positive(steps=self.steps, rate=self.rate, first=self.first)
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise PlanError(expected="at least 1 round", got=f"rounds = {self.rounds}", remedy="Leave it out for 10.")

    @property
    def name(self) -> str:
        """Method, and whether it aims at a class."""
        return "cw" + aimed(self.loss)

    @property
    def queries(self) -> int:
        """Every step of every round."""
        return self.steps * self.rounds

    def init(self, p: Batch, ball: Ball) -> State:
        """The clean point as the new variable gives it back, or where told."""
        w = _preimage(begin(p, ball))
        zero = torch.zeros_like(w)
        search = _tradeoff.first(ball.eps, p.y, self.first)
        return State(torch.zeros_like(p.y), _image(w, p, ball), w, zero, zero, search)

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """One step of Adam, or a new round."""
        home = _preimage(p.x)
        off = s.x - _image(home, p, ball)
        behind = (-ahead(a)).clamp(min=0)
        objective = flat(off).square().sum(1) + s.search.c * behind
        search, over = _tradeoff.observe(s.search, objective, fooled(a, p), self.steps)
        weight = rows(torch.where(behind > 0, s.search.c, 0.0), off)
        g = (2 * off - weight * free(a.gradient, ball)) * _slope(s.w)
        m, v = BETA_1 * s.m + (1 - BETA_1) * g, BETA_2 * s.v + (1 - BETA_2) * g.square()
        mean = m / rows(1 - power(search.k, self.steps, BETA_1), m)
        size = (v / rows(1 - power(search.k, self.steps, BETA_2), v)).sqrt() + TINY
        w = where(over, home, s.w - self.rate * mean / size)
        zero = torch.zeros_like(m)
        search = _tradeoff.settle(search, over, self.rounds)
        t = torch.where(over & (search.round >= self.rounds), self.queries, s.t + 1)
        return State(t, _image(w, p, ball), w, where(over, zero, m), where(over, zero, v), search)


# In float64 and rounded: the last bits of these functions depend on an element's place in its tensor.
def _preimage(x: Points) -> Tensor:
    return (INSIDE * (2 * x.double() - 1)).atanh().float()


def _image(w: Points, p: Batch, ball: Ball) -> Points:
    return ((w.double().tanh() + 1) / 2).float().clamp(*ball.bounds(p.x))


def _slope(w: Points) -> Tensor:
    return ((1 - w.double().tanh().square()) / 2).float()
