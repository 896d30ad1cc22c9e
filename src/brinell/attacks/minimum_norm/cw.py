"""Carlini and Wagner's L2 attack: Adam in unbounded variables, and a search over the weight of the margin."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from brinell.attacks._common import MinimumNormAttack, PointState, adam, finite_loss, misclassified, start_in_box
from brinell.attacks._parameters import check_margin_loss, check_positive, check_whole
from brinell.attacks.minimum_norm import _tradeoff
from brinell.core.attack import Batch, Response
from brinell.core.threat import Ball
from brinell.ops.norms import L2, Norm
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Points

# Inputs are scaled by this before the inverse hyperbolic tangent, so that the faces of the box stay finite.
INSIDE = 0.999999


@dataclass(frozen=True)
class CWState(PointState):
    """State of CW: the point x, its preimage w under tanh, the moments of Adam, and the search over c."""

    w: Points
    m: Points
    v: Points
    search: _tradeoff.ConstantSearch


@dataclass(frozen=True)
class CW(MinimumNormAttack[CWState]):
    """An attack that minimises ‖d‖₂² + c · max(−margin, 0) in rounds that search for the best c.

    Method: x = ½ + ½ tanh(w), with Adam on w. c starts at `first` and is multiplied by 10 until a round succeeds; then
    it is bisected. A round ends early when the objective no longer decreases. Cost: at most `steps` forward and
    backward passes in each of `rounds` rounds.
    Reference: Carlini & Wagner 2017, "Towards evaluating the robustness of neural networks", with the
    hyper-parameters of Foolbox 2.4 and the ten rounds of "How to compare adversarial robustness of classifiers from a
    global perspective".
    Limits: needs ten rounds of a thousand steps. With fewer, c is inaccurate and distances are too large.
    Gradients vanish on saturated logits.

    >>> CW(steps=100, rounds=5).queries
    500
    """

    steps: int = 1000
    rounds: int = 10
    rate: float = 5e-3
    first: float = 1e-2
    loss: str = "margin"
    method = "cw"
    norms: ClassVar[tuple[Norm, ...]] = (L2,)

    def __post_init__(self) -> None:
        check_margin_loss(self.loss)
        check_whole(steps=self.steps, rounds=self.rounds)
        check_positive(rate=self.rate, first=self.first)

    @property
    def queries(self) -> int:
        return self.steps * self.rounds

    def init(self, p: Batch, ball: Ball) -> CWState:
        """Return the state at the explicit start or at the clean point, up to rounding by the change of variables."""
        w = _preimage(start_in_box(p, ball))
        zero = torch.zeros_like(w)
        search = _tradeoff.first(ball.eps, p.y, self.first)
        return CWState(torch.zeros_like(p.y), _image(w, p, ball), w, zero, zero, search)

    def step(self, s: CWState, a: Response, p: Batch, ball: Ball) -> CWState:
        home = _preimage(p.x)
        off = s.x - _image(home, p, ball)
        behind = (-finite_loss(a)).clamp(min=0)
        objective = flat(off).square().sum(1) + s.search.c * behind
        search, over = _tradeoff.observe(s.search, objective, misclassified(a, p), self.steps)
        weight = rows(torch.where(behind > 0, s.search.c, 0.0), off)
        g = (2 * off - weight * ball.masked(a.gradient)) * _slope(s.w)
        m, v, mean, size = adam(s.m, s.v, g, search.k, self.steps)
        w = where(over, home, s.w - self.rate * mean / size)
        zero = torch.zeros_like(m)
        search = _tradeoff.next_constant(search, over, self.rounds)
        t = torch.where(over & (search.round >= self.rounds), self.queries, s.t + 1)
        return CWState(t, _image(w, p, ball), w, where(over, zero, m), where(over, zero, v), search)


# In float64, then rounded: in float32 the last bits of these functions depend on the position in the tensor.
def _preimage(x: Points) -> Tensor:
    return (INSIDE * (2 * x.double() - 1)).atanh().float()


def _image(w: Points, p: Batch, ball: Ball) -> Points:
    return ((w.double().tanh() + 1) / 2).float().clamp(*ball.bounds(p.x))


def _slope(w: Points) -> Tensor:
    return ((1 - w.double().tanh().square()) / 2).float()
