"""Draw the points around a sample that form its two classes; a detector may restrict the points of the second class."""

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

# Samples whose points are drawn at a time.
PLANTED = 64
INNER, BOUNDARY, BEYOND = (rng.digest(f"binarization test, {kind} points") for kind in ("inner", "boundary", "far-off"))
# Zimmermann et al. 2022, app. B: distance, in radii, of the points whose features attacks may match.
FAR = 1.75
# Points drawn for each one needed before a sample is given up, and points per round.
TRIES, ROUND = 64, 8
# Further points searched for, for each one needed.
ATTEMPTS = 10
# Ascent steps on a detector's score.
ASCENT_STEPS = 20


@dataclass(frozen=True)
class Design:
    """A rule for drawing a sample's two classes: `inner` points within (1 − gap)·eps, `boundary` points at eps.

    `corners` draws boundary points from the corners of the Linf ball instead of its whole surface. `beyond` is the
    number of further points of the second class at 1.75 eps, for attacks that match the features of another class.
    """

    inner: int = 999
    boundary: int = 1
    corners: bool = True
    gap: float = 0.05
    beyond: int = 0

    def __post_init__(self) -> None:
        if self.inner < 0 or self.boundary < 1 or not 0 < self.gap < 1:
            raise InputError(
                expected="at least 0 inner points, at least 1 boundary point, and a gap between 0 and 1",
                got=f"inner={self.inner}, boundary={self.boundary}, gap={self.gap}",
                remedy="Pass for example the defaults, inner=999, boundary=1, gap=0.05.",
            )

    def inner_points(self, ball: Ball, x0: Tensor, key: Tensor, j: Tensor) -> Tensor:
        """Return inner point number j of every row of `x0` (j has one number per row); number 0 is the clean point."""
        near = replace(ball, eps=ball.eps * (1 - self.gap))
        x = near.inside(x0, rng.fold(rng.fold(key, INNER), j))
        return torch.where((j == 0).view(-1, *[1] * (x0.ndim - 1)), x0, x)

    def boundary_points(self, ball: Ball, x0: Tensor, key: Tensor, j: Tensor) -> Tensor:
        """Return boundary point number j of every row of `x0`."""
        return ball.surface(x0, rng.fold(rng.fold(key, BOUNDARY), j), self.corners)

    def beyond_points(self, ball: Ball, x0: Tensor, key: Tensor, j: Tensor) -> Tensor:
        """Return point number j beyond eps, at 1.75 eps, of every row of `x0`."""
        return replace(ball, eps=ball.eps * FAR).surface(x0, rng.fold(rng.fold(key, BEYOND), j), self.corners)


@dataclass(frozen=True)
class Planted:
    """The points of the second class for a chunk: `boundary` (n, b, …) at distance eps, `beyond` (n, r, …) at 1.75 eps.

    `enough` marks the samples for which all points were found; `drawn` counts the points drawn.
    """

    boundary: Tensor
    beyond: Tensor
    enough: Tensor
    drawn: int


Draw = Callable[[Ball, Tensor, Tensor, Tensor], Tensor]
"""(ball, clean points, keys, numbers) -> the points of those numbers."""
Accepts = Callable[[Tensor], Tensor]
"""points -> a mask of those that are accepted as points of the second class."""
Search = Callable[[Tensor, int], Tensor]
"""(positions of samples, number of the attempt) -> a point per sample that gives the direction to try."""


def plant(
    design: Design, chunk: Chunk, threat: Threat, seed: int, device: torch.device, accepts: Accepts | None = None,
    search: Search | None = None,
) -> Planted:  # fmt: skip
    """Draw the points of the second class for every sample of a chunk.

    Method: rejection sampling. Points are drawn one after another; those for which `accepts` is true are kept until
    there are enough. After 64 draws per required point, `search` may try up to 10 further points for each; a point that
    it finds is moved along the line from the sample to the required distance and checked again. A sample's points
    depend on its id and the seed alone.
    """
    planter = _Planter(chunk, threat, seed, device, accepts, search)
    ends = planter.filled(design.boundary_points, design.boundary)
    far = planter.filled(design.beyond_points, design.beyond, FAR)
    enough = (ends.have == design.boundary) & (far.have == design.beyond)
    return Planted(ends.points, far.points, enough, ends.drawn + far.drawn)


@dataclass(frozen=True)
class _Planter:
    """The arguments of `plant`, except the design."""

    chunk: Chunk
    threat: Threat
    seed: int
    device: torch.device
    accepts: Accepts | None
    search: Search | None

    def filled(self, draw: Draw, count: int, far: float = 1.0) -> "_PlantedPoints":
        """Return `count` points per sample at distance `far` · eps, or fewer if no more are accepted."""
        n = len(self.chunk)
        kept = _PlantedPoints(
            torch.zeros(n, count, *self.chunk.x.shape[1:], dtype=torch.float32, device="cpu"),
            torch.zeros(n, dtype=torch.long, device="cpu"),
        )
        for at in torch.arange(n, device="cpu").split(PLANTED):
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
        i = kept.lacking(torch.arange(len(self.chunk), device="cpu"))
        if self.search is None or not len(i):
            return
        ball = self.threat.ball(i + self.chunk.offset, self.device)
        ball = replace(ball, eps=far * ball.eps)
        kept.add(i, at_distance(ball, self.chunk.x[i].to(self.device), self.search(i, attempt)), self.accepts)


def _rounds(count: int) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of point numbers to draw: first `count` points at once, then 8 points at a time."""
    if count:
        yield 0, count
    for first in range(count, TRIES * count, ROUND):
        yield first, min(first + ROUND, TRIES * count)


@dataclass
class _PlantedPoints:
    """The accepted points, (n, count, …) on the CPU; `have` counts them per sample, `drawn` counts all points drawn."""

    points: Tensor
    have: Tensor
    drawn: int = 0

    def lacking(self, at: Tensor) -> Tensor:
        return at[self.have[at] < self.points.shape[1]]

    def add(self, at: Tensor, points: Tensor, accepts: Accepts | None) -> None:
        """Keep the accepted points that the samples `at` still need; `points` has equally many for every sample."""
        good = torch.ones(len(points), dtype=torch.bool, device="cpu") if accepts is None else accepts(points).cpu()
        good, found = good.view(len(at), -1), points.cpu().view(len(at), -1, *points.shape[1:])
        place = self.have[at][:, None] + good.cumsum(1) - 1
        row, column = (good & (place < self.points.shape[1])).nonzero(as_tuple=True)
        self.points[at[row], place[row, column]] = found[row, column]
        self.have[at] = (self.have[at] + good.sum(1)).clamp(max=self.points.shape[1])
        self.drawn += len(points)


def at_distance(ball: Ball, x0: Tensor, x: Tensor) -> Tensor:
    """Return the points at distance eps from x0 in the direction of x, or nearer if the box ends before eps."""
    lo, hi = ball.bounds(x0)
    v = x - x0
    d = ball.norm.stretch(v if ball.mask is None else v * ball.mask, ball.eps, lo - x0, hi - x0)
    return ball.project(x0, x0 + d)


def score_ascent(oracle: Oracle, ball: Ball, x0: Tensor, key: Tensor) -> Tensor:
    """Return points at distance eps with a high detector score, by gradient ascent from random points."""
    x, none = ball.surface(x0, key), torch.full((len(x0),), -1, device=x0.device, dtype=torch.long)
    for step in range(ASCENT_STEPS):
        up = oracle.query(x, torch.zeros_like(none), none, "margin", Requires.DETECTOR).score_gradient
        length = (1 - step / ASCENT_STEPS) * ball.eps
        x = at_distance(ball, x0, ball.project(x0, x + rows(length, x) * ball.steepest(up)))
    return x


def accepting(oracle: Oracle, draws: int = 1) -> Accepts:
    """Return a function that gives a mask of the points that the detector accepts in most of `draws` passes."""

    def accepts(x: Tensor) -> Tensor:
        votes = [_accepted(oracle.output(x)) for _ in range(draws)]
        return 2 * torch.stack(votes).sum(0) > draws

    return accepts


def _accepted(out: Output) -> Tensor:
    assert out.reject is not None, "the model has a detector"
    return out.reject <= 0
