"""A network turned into one two-class classifier per sample, each with an adversarial that is known to exist."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.core.dataset import Chunk
from brinell.core.model import Classifier, DelegatingClassifier, Output
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.errors import ModelError
from brinell.ops import rng
from brinell.ops.rowwise import concat, head, take
from brinell.reliability.binarization.features import Features
from brinell.reliability.binarization.margin import CHUNK
from brinell.reliability.binarization.planting import Design, Planted, plant
from brinell.reliability.binarization.readouts import Heads, Readout

# Rows whose readouts are asked at a time while the readouts are looked at.
PIECE = 64


@dataclass(frozen=True)
class ReadoutStatistics:
    """What is known of every sample's readout on the points it was fitted to, one row each.

    `d` is the second logit less the first: `inner` is its largest value over the inner points, `weakest` its least over
    all points of the other class, `best` its largest over the boundary points, `witness` the point where that is.
    `beyond` are the points beyond eps, (n, r, …). κ is measured to `held`: the best boundary point or, where that is
    weaker, the weakest point beyond, so that all of these stay in their class. `lo` and `hi` are the extremes of both
    logits, (n, 2); `least` and `range` describe the original network's logits on the same points.
    """

    inner: Tensor
    weakest: Tensor
    best: Tensor
    held: Tensor
    witness: Tensor
    beyond: Tensor
    lo: Tensor
    hi: Tensor
    least: Tensor
    range: Tensor

    @property
    def separated(self) -> Tensor:
        """Whether a threshold tells all inner points from all boundary points."""
        return (self.weakest > self.inner) & self.best.isfinite() & self.inner.isfinite() & (self.range > 0)


@dataclass(frozen=True, eq=False)
class BinaryClassifier(DelegatingClassifier):
    """The network's features with another two-class readout for every sample; sample ids choose it.

    Logits: scale · (q ± shift / 2) + offset, where q are the readout's own.
    """

    features: Features
    heads: Heads
    ids: Tensor
    shift: Tensor
    scale: Tensor
    offset: Tensor
    per_sample = True

    @property
    def base(self) -> Classifier:
        """The network."""
        return self.features

    def forward(self, x: Tensor) -> Output:
        """There is no answer without knowing whose points these are."""
        raise ModelError(
            expected="the ids of the samples the points belong to",
            got="points alone",
            remedy="Ask with forward_of(x, id).",
        )

    def forward_of(self, x: Tensor, id: Tensor) -> Output:
        """Two logits per row, by the readout of its sample; detector and features are the network's own."""
        at = torch.searchsorted(self.ids, id)
        f, out = self.features.judged(x)
        q = self.heads.logits(f, at)
        half = self.shift[at] / 2
        z = self.scale[at][:, None] * (q + torch.stack([half, -half], 1)) + self.offset[at][:, None]
        return replace(out, logits=z)

    def to(self, device: torch.device) -> "BinaryClassifier":
        """Only where it is already: readouts belong to the device they were fitted on."""
        assert device == self.device, "readouts stay where they were fitted"
        return self


@dataclass(frozen=True)
class BinaryTasks:
    """The samples that could be separated, sorted by id: their readouts, and where each stands in the problem."""

    features: Features
    heads: Heads
    statistics: ReadoutStatistics
    ids: Tensor
    at: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def classifier(self, kappa: float) -> BinaryClassifier:
        """The classifiers whose decision boundary lies at κ of the way from the nearest inner point to the witness."""
        f = self.statistics
        shift = f.inner + kappa * (f.held - f.inner)
        half = torch.stack([shift, -shift], 1) / 2
        low, high = (f.lo + half).amin(1), (f.hi + half).amax(1)
        scale = f.range / (high - low)
        return BinaryClassifier(self.features, self.heads, self.ids, shift, scale, f.least - scale * low)


def build(
    oracle: Oracle,
    features: Features,
    readout: Readout,
    design: Design,
    chunk: Chunk,
    threat: Threat,
    seed: int,
    planted: Planted | None = None,
) -> BinaryTasks | None:
    """A readout for every sample, a few samples at a time; those that cannot be separated are left out.

    `planted` are the points of the second class; without them every point that is drawn will do.
    """
    planted = plant(design, chunk, threat, seed, features.device) if planted is None else planted
    order = chunk.ids.argsort()
    order = order[planted.enough[order]]
    if not len(order):
        return None
    parts = []
    for at in order.split(CHUNK):
        # Always so many samples at a time, the last one repeated: shapes, and with them rounding, are the same for all.
        full = at[torch.arange(CHUNK).clamp(max=len(at) - 1)]
        heads, statistics = _fit(oracle, features, readout, design, chunk, full, threat, seed, planted)
        parts.append((heads.keep(torch.arange(len(at), device=features.device)), head(statistics, len(at))))
    heads = parts[0][0].join([h for h, _ in parts[1:]]) if len(parts) > 1 else parts[0][0]
    statistics = concat([f for _, f in parts])
    keep = statistics.separated.nonzero()[:, 0]
    if not len(keep):
        return None
    ids = chunk.ids[order].to(features.device)
    return BinaryTasks(features, heads.keep(keep), take(statistics, keep), ids[keep], order[keep.cpu()])


def _fit(
    oracle: Oracle,
    features: Features,
    readout: Readout,
    design: Design,
    chunk: Chunk,
    at: Tensor,
    threat: Threat,
    seed: int,
    planted: Planted,
) -> tuple[Heads, ReadoutStatistics]:
    """The readouts of the samples at these places, and what is known of each."""
    device = features.device
    x, key = chunk.x[at].to(device), rng.keys(seed, chunk.ids[at].to(device))
    ball = threat.ball(at + chunk.offset, device)
    widths = features.widths(x[:1])
    n, wide = len(x), sum(widths)

    def asked(point: Callable[[Tensor, Tensor], Tensor], count: int) -> Tensor:
        """Features and logits, (n, count, f + k), of `count` points of every sample, never all of them in memory."""
        row = torch.arange(n * count, device=device)
        out = [oracle.output(point(piece // count, piece % count)).logits for piece in row.split(oracle.block * 8)]
        return torch.cat(out).view(n, count, -1)

    def within(i: Tensor, j: Tensor) -> Tensor:
        return design.inner_points(ball.subset(i), x[i], key[i], j)

    ones = torch.cat([planted.boundary[at], planted.beyond[at]], 1).to(device)
    inner, outer = asked(within, design.inner + 1), asked(lambda i, j: ones[i, j], ones.shape[1])
    both = torch.cat([inner, outer], 1)
    with torch.no_grad():
        heads = readout.fit(inner[:, :, :wide].double(), outer[:, :, :wide].double(), widths)
        q = _scores(heads, both[:, :, :wide])
    return heads, _facts(design, q, both[:, :, wide:].flatten(1), ones)


def _facts(design: Design, q: Tensor, z: Tensor, ones: Tensor) -> ReadoutStatistics:
    """What is kept of every sample's readout: of its logits q on all points, of the network's own z, of the points."""
    d = q[:, :, 1] - q[:, :, 0]
    zeros, ends, far = d.split([design.inner + 1, design.boundary, ones.shape[1] - design.boundary], 1)
    best, which = ends.max(1)
    return ReadoutStatistics(
        inner=zeros.amax(1),
        weakest=d[:, design.inner + 1 :].amin(1),
        best=best,
        held=torch.cat([best[:, None], far], 1).amin(1),
        witness=ones[torch.arange(len(q), device=q.device), which],
        beyond=ones[:, design.boundary :],
        lo=q.amin(1),
        hi=q.amax(1),
        least=z.amin(1),
        range=z.amax(1) - z.amin(1),
    )


def _scores(heads: Heads, f: Tensor) -> Tensor:
    """The readouts' logits on the points of their own samples, (n, m, 2)."""
    n, m, _ = f.shape
    at = torch.arange(n, device=f.device).repeat_interleave(m)
    rows = f.reshape(n * m, -1)
    parts = zip(rows.split(PIECE), at.split(PIECE), strict=True)
    return torch.cat([heads.logits(part, where) for part, where in parts]).view(n, m, 2)
