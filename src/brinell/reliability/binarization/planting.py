"""The points around a sample: inner ones, and those of the other class, which a detector may have a say in."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.core.attack import Requires
from brinell.core.dataset import Chunk
from brinell.core.model import Output
from brinell.core.threat import Ball, Threat
from brinell.engine.oracle import Oracle
from brinell.errors import InputError
from brinell.ops import rng
from brinell.ops.rowwise import rows

# Samples whose points of the second class are drawn at a time.
PLANTED = 64
INNER, BOUNDARY, BEYOND = (rng.digest(f"binarization test, {kind} points") for kind in ("inner", "boundary", "far-off"))
# Zimmermann et al. 2022, app. B: how far off, in radii, lie the points that attacks may imitate.
FAR = 1.75
# How many points are drawn for every one that is needed before a sample is given up, and how many at a time.
TRIES, ROUND = 64, 8
# How many points are searched for after that, for every one that is needed.
ATTEMPTS = 10
# Steps uphill along a detector's score.
CLIMB = 20


@dataclass(frozen=True)
class Design:
    """How the two classes of a sample are drawn: so many inner points within (1 − gap)·eps, so many at distance eps.

    `corners` draws the latter from the corners of the Linf ball instead of its whole surface. `beyond` is the number of
    further points of their class at 1.75 eps, for attacks that imitate an input of another class.
    """

    inner: int = 999
    boundary: int = 1
    corners: bool = True
    gap: float = 0.05
    beyond: int = 0

    def __post_init__(self) -> None:
        if self.inner < 0 or self.boundary < 1 or not 0 < self.gap < 1:
            raise InputError(
                expected="at least 0 inner points, 1 boundary point, and a gap between 0 and 1",
                got=f"{self.inner}, {self.boundary}, {self.gap}",
                remedy="Leave them out for 999, 1 and 0.05.",
            )

    def inner_points(self, ball: Ball, x0: Tensor, key: Tensor, j: Tensor) -> Tensor:
        """The j-th inner point of every row; the 0-th is the clean one."""
        near = replace(ball, eps=ball.eps * (1 - self.gap))
        x = near.inside(x0, rng.fold(rng.fold(key, INNER), j))
        return torch.where((j == 0).view(-1, *[1] * (x0.ndim - 1)), x0, x)

    def boundary_points(self, ball: Ball, x0: Tensor, key: Tensor, j: Tensor) -> Tensor:
        """The j-th boundary point of every row."""
        return ball.surface(x0, rng.fold(rng.fold(key, BOUNDARY), j), self.corners)

    def beyond_points(self, ball: Ball, x0: Tensor, key: Tensor, j: Tensor) -> Tensor:
        """The j-th point beyond eps of every row."""
        return replace(ball, eps=ball.eps * FAR).surface(x0, rng.fold(rng.fold(key, BEYOND), j), self.corners)


@dataclass(frozen=True)
class Planted:
    """The points of the second class of every sample of a chunk: (n, b, …) at distance eps and (n, r, …) beyond.

    `enough` says which samples have all of them; `drawn` is how many were drawn for that.
    """

    boundary: Tensor
    beyond: Tensor
    enough: Tensor
    drawn: int


Draw = Callable[[Ball, Tensor, Tensor, Tensor], Tensor]
"""(ball, clean points, keys, numbers) -> the points of those numbers."""
Accepts = Callable[[Tensor], Tensor]
"""Points -> whether each may be planted."""
Search = Callable[[Tensor, int], Tensor]
"""(positions of samples, number of the attempt) -> for each sample a point, in whose direction one may be planted."""


def plant(
    design: Design,
    chunk: Chunk,
    threat: Threat,
    seed: int,
    device: torch.device,
    accepts: Accepts | None = None,
    search: Search | None = None,
) -> Planted:
    """Points of the second class for every sample of a chunk.

    Method: rejection sampling. Points are drawn one after another, and the first so many that stand are kept; whoever
    lacks some after 64 draws for each gets 10 more from the `search` for each, moved along their direction to the
    right distance and asked again. A sample's points depend on its id and the seed, not on its company.
    """
    field = _Planter(chunk, threat, seed, device, accepts, search)
    ends = field.filled(design.boundary_points, design.boundary)
    far = field.filled(design.beyond_points, design.beyond, FAR)
    enough = (ends.have == design.boundary) & (far.have == design.beyond)
    return Planted(ends.points, far.points, enough, ends.drawn + far.drawn)


@dataclass(frozen=True)
class _Planter:
    """Where points are planted, and what has a say in it."""

    chunk: Chunk
    threat: Threat
    seed: int
    device: torch.device
    accepts: Accepts | None
    search: Search | None

    def filled(self, draw: Draw, count: int, far: float = 1.0) -> "_PlantedPoints":
        """So many points of every sample, `far` radii off, or as many as are found."""
        n = len(self.chunk)
        kept = _PlantedPoints(torch.zeros(n, count, *self.chunk.x.shape[1:]), torch.zeros(n, dtype=torch.long))
        for at in torch.arange(n).split(PLANTED):
            self._draw(kept, draw, at)
        for attempt in range(0 if self.search is None else ATTEMPTS * count):
            self._search(kept, far, attempt)
        return kept

    def _draw(self, kept: "_PlantedPoints", draw: Draw, at: Tensor) -> None:
        ball, x = self.threat.ball(at + self.chunk.offset, self.device), self.chunk.x[at].to(self.device)
        key = rng.keys(self.seed, self.chunk.ids[at].to(self.device))
        for first, last in _rounds(kept.points.shape[1]):
            i = kept.lacking(at)
            if not len(i):
                return
            row = (i - at[0]).to(self.device).repeat_interleave(last - first)
            j = torch.arange(first, last, device=self.device).repeat(len(i))
            kept.add(i, draw(ball.subset(row), x[row], key[row], j), self.accepts)

    def _search(self, kept: "_PlantedPoints", far: float, attempt: int) -> None:
        i = kept.lacking(torch.arange(len(self.chunk)))
        if self.search is None or not len(i):
            return
        ball = self.threat.ball(i + self.chunk.offset, self.device)
        ball = replace(ball, eps=far * ball.eps)
        kept.add(i, outwards(ball, self.chunk.x[i].to(self.device), self.search(i, attempt)), self.accepts)


def _rounds(count: int) -> Iterator[tuple[int, int]]:
    """Numbers of the points to draw: at first as many as are needed, then a few at a time."""
    if count:
        yield 0, count
    for first in range(count, TRIES * count, ROUND):
        yield first, min(first + ROUND, TRIES * count)


@dataclass
class _PlantedPoints:
    """Points that stand, (n, count, …) on the host, how many of them every sample has, and how many were looked at."""

    points: Tensor
    have: Tensor
    drawn: int = 0

    def lacking(self, at: Tensor) -> Tensor:
        """Which of these samples lack some."""
        return at[self.have[at] < self.points.shape[1]]

    def add(self, at: Tensor, points: Tensor, accepts: Accepts | None) -> None:
        """Keep what is needed of equally many points of every sample."""
        good = torch.ones(len(points), dtype=torch.bool) if accepts is None else accepts(points).cpu()
        good, found = good.view(len(at), -1), points.cpu().view(len(at), -1, *points.shape[1:])
        place = self.have[at][:, None] + good.cumsum(1) - 1
        row, column = (good & (place < self.points.shape[1])).nonzero(as_tuple=True)
        self.points[at[row], place[row, column]] = found[row, column]
        self.have[at] = (self.have[at] + good.sum(1)).clamp(max=self.points.shape[1])
        self.drawn += len(points)


def outwards(ball: Ball, x0: Tensor, x: Tensor) -> Tensor:
    """The points at distance eps (less where the box ends before) in the directions of x from x0."""
    lo, hi = ball.bounds(x0)
    v = x - x0
    d = ball.norm.stretch(v if ball.mask is None else v * ball.mask, ball.eps, lo - x0, hi - x0)
    return ball.project(x0, x0 + d)


def uphill(oracle: Oracle, ball: Ball, x0: Tensor, key: Tensor) -> Tensor:
    """Points at distance eps that a detector finds more suspicious than a random one: uphill along its score."""
    x, none = ball.surface(x0, key), torch.full((len(x0),), -1, device=x0.device)
    for step in range(CLIMB):
        up = oracle.query(x, torch.zeros_like(none), none, "margin", Requires.DETECTOR).score_gradient
        length = (1 - step / CLIMB) * ball.eps
        x = outwards(ball, x0, ball.project(x0, x + rows(length, x) * ball.steepest(up)))
    return x


def accepting(oracle: Oracle, draws: int = 1) -> Accepts:
    """Whether the detector accepts a point, in most of so many passes; a score that is NaN accepts nothing."""

    def accepts(x: Tensor) -> Tensor:
        votes = [_accepted(oracle.output(x)) for _ in range(draws)]
        return 2 * torch.stack(votes).sum(0) > draws

    return accepts


def _accepted(out: Output) -> Tensor:
    assert out.reject is not None, "only a model with a detector is asked"
    return out.reject <= 0
