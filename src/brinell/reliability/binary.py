"""A network turned into one two-class classifier per sample, each with an adversarial that is known to exist."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.core.classifier import Output
from brinell.core.problem import Chunk
from brinell.core.threat import Ball, Threat
from brinell.engine.oracle import Oracle
from brinell.errors import InputError, ModelError
from brinell.ops import rng
from brinell.ops.rows import concat, head, take
from brinell.reliability.features import Features
from brinell.reliability.margin import CHUNK
from brinell.reliability.readouts import Heads, Readout

# Rows whose readouts are asked at a time while the readouts are looked at.
PIECE = 64
INNER, BOUNDARY = (rng.digest(f"binarization test, {kind} points") for kind in ("inner", "boundary"))


@dataclass(frozen=True)
class Design:
    """How the two classes of a sample are drawn: so many inner points within (1 − gap)·eps, so many at distance eps.

    `corners` draws the latter from the corners of the Linf ball instead of its whole surface.
    """

    inner: int = 999
    boundary: int = 1
    corners: bool = True
    gap: float = 0.05

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


@dataclass(frozen=True)
class Facts:
    """What is known of every sample's readout on the points it was fitted to, one row each.

    `d` is the second logit less the first: `inner` is its largest value over the inner points, `weakest` and `best` are
    its extremes over the boundary points, `witness` is the point where it is best. `lo` and `hi` are the extremes of
    both logits, (n, 2); `least` and `range` describe the original network's logits on the same points.
    """

    inner: Tensor
    weakest: Tensor
    best: Tensor
    witness: Tensor
    lo: Tensor
    hi: Tensor
    least: Tensor
    range: Tensor

    @property
    def separated(self) -> Tensor:
        """Whether a threshold tells all inner points from all boundary points."""
        return (self.weakest > self.inner) & self.best.isfinite() & self.inner.isfinite() & (self.range > 0)


@dataclass(frozen=True, eq=False)
class Binary:
    """The network's features with another two-class readout for every sample; sample ids choose it.

    Logits: scale · (q ± shift / 2) + offset, where q are the readout's own.
    """

    features: Features
    heads: Heads
    ids: Tensor
    shift: Tensor
    scale: Tensor
    offset: Tensor

    @property
    def name(self) -> str:
        """That of the network."""
        return self.features.name

    @property
    def fingerprint(self) -> str:
        """That of the network."""
        return self.features.fingerprint

    @property
    def differentiable(self) -> bool:
        """As the network."""
        return self.features.differentiable

    @property
    def device(self) -> torch.device:
        """Where the inputs must be."""
        return self.features.device

    @property
    def allow(self) -> frozenset[str]:
        """As the network."""
        return self.features.allow

    def forward(self, x: Tensor) -> Output:
        """There is no answer without knowing whose points these are."""
        raise ModelError(
            expected="the ids of the samples the points belong to",
            got="points alone",
            remedy="Ask with forward_of(x, id).",
        )

    def forward_of(self, x: Tensor, id: Tensor) -> Output:
        """Two logits per row, by the readout of its sample."""
        at = torch.searchsorted(self.ids, id)
        q = self.heads.logits(self.features.of(x), at)
        half = self.shift[at] / 2
        z = self.scale[at][:, None] * (q + torch.stack([half, -half], 1)) + self.offset[at][:, None]
        return Output(z)

    def to(self, device: torch.device) -> "Binary":
        """Only where it is already: readouts belong to the device they were fitted on."""
        assert device == self.device, "readouts stay where they were fitted"
        return self

    def dtypes(self) -> set[str]:
        """Those of the network."""
        return self.features.dtypes()

    def modes(self) -> list[str]:
        """Those of the network."""
        return self.features.modes()


@dataclass(frozen=True)
class Tasks:
    """The samples that could be separated, sorted by id: their readouts, and where each stands in the problem."""

    features: Features
    heads: Heads
    facts: Facts
    ids: Tensor
    at: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def classifier(self, kappa: float) -> Binary:
        """The classifiers whose decision boundary lies at κ of the way from the nearest inner point to the witness."""
        f = self.facts
        shift = f.inner + kappa * (f.best - f.inner)
        half = torch.stack([shift, -shift], 1) / 2
        low, high = (f.lo + half).amin(1), (f.hi + half).amax(1)
        scale = f.range / (high - low)
        return Binary(self.features, self.heads, self.ids, shift, scale, f.least - scale * low)


def build(
    oracle: Oracle,
    features: Features,
    readout: Readout,
    design: Design,
    chunk: Chunk,
    threat: Threat,
    seed: int,
    told: Callable[[int], None] = lambda done: None,
) -> Tasks | None:
    """A readout for every sample, a few samples at a time; those that cannot be separated are left out."""
    order = chunk.ids.argsort()
    parts = []
    for at in order.split(CHUNK):
        # Always so many samples at a time, the last one repeated: shapes, and with them rounding, are the same for all.
        full = at[torch.arange(CHUNK).clamp(max=len(at) - 1)]
        heads, facts = _fit(oracle, features, readout, design, chunk, full, threat, seed)
        parts.append((heads.keep(torch.arange(len(at), device=features.device)), head(facts, len(at))))
        told(sum(len(p[1].inner) for p in parts))
    heads = parts[0][0].join([h for h, _ in parts[1:]]) if len(parts) > 1 else parts[0][0]
    facts = concat([f for _, f in parts])
    keep = facts.separated.nonzero()[:, 0]
    if not len(keep):
        return None
    ids = chunk.ids[order].to(features.device)
    return Tasks(features, heads.keep(keep), take(facts, keep), ids[keep], order[keep.cpu()])


def _fit(
    oracle: Oracle,
    features: Features,
    readout: Readout,
    design: Design,
    chunk: Chunk,
    at: Tensor,
    threat: Threat,
    seed: int,
) -> tuple[Heads, Facts]:
    device = features.device
    x, key = chunk.x[at].to(device), rng.keys(seed, chunk.ids[at].to(device))
    ball = threat.ball(at + chunk.offset, device)
    widths = features.widths(x[:1])
    n, wide = len(x), sum(widths)

    def asked(draw: Callable[..., Tensor], count: int) -> Tensor:
        """Features and logits, (n, count, f + k), of `count` points of every sample, never all of them in memory."""
        row = torch.arange(n * count, device=device)
        out = []
        for piece in row.split(oracle.block * 8):
            i, j = piece // count, piece % count
            points = draw(replace(ball, eps=ball.eps[i]), x[i], key[i], j)
            out.append(oracle.output(points).logits)
        return torch.cat(out).view(n, count, -1)

    inner, outer = asked(design.inner_points, design.inner + 1), asked(design.boundary_points, design.boundary)
    both = torch.cat([inner, outer], 1)
    with torch.no_grad():
        heads = readout.fit(inner[:, :, :wide].double(), outer[:, :, :wide].double(), widths)
        q = _scores(heads, both[:, :, :wide])
    d = q[:, :, 1] - q[:, :, 0]
    best, which = d[:, design.inner + 1 :].max(1)
    witness = design.boundary_points(ball, x, key, which)
    z = both[:, :, wide:].flatten(1)
    facts = Facts(
        inner=d[:, : design.inner + 1].amax(1),
        weakest=d[:, design.inner + 1 :].amin(1),
        best=best,
        witness=witness,
        lo=q.amin(1),
        hi=q.amax(1),
        least=z.amin(1),
        range=z.amax(1) - z.amin(1),
    )
    return heads, facts


def _scores(heads: Heads, f: Tensor) -> Tensor:
    """The readouts' logits on the points of their own samples, (n, m, 2)."""
    n, m, _ = f.shape
    at = torch.arange(n, device=f.device).repeat_interleave(m)
    rows = f.reshape(n * m, -1)
    parts = zip(rows.split(PIECE), at.split(PIECE), strict=True)
    return torch.cat([heads.logits(part, where) for part, where in parts]).view(n, m, 2)
