"""Build one two-class classifier per sample from one network; each has a known adversarial example."""

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

# Rows evaluated at a time when the readouts are checked.
PIECE = 64


@dataclass(frozen=True)
class ReadoutStatistics:
    """Statistics of every sample's readout on the points that the readout was fitted to, one row per sample.

    Let d be the second logit of the readout minus the first. `inner` is the largest d of the inner points, `weakest`
    the smallest d of all points of the second class. `best` is the largest d of the boundary points, and `witness` the
    boundary point with this d. `beyond` holds the points beyond eps, (n, r, …). `held` is the value of d at which the
    decision boundary lies for κ = 1: the minimum of `best` and of d at the points beyond eps, which thus stay in the
    second class. `lo` and `hi` are the smallest and largest values of each readout logit, (n, 2). `least` is the
    smallest logit of the original network on the same points, `range` the largest minus the smallest.
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
        """A mask of the samples for which a threshold on d separates the inner points from the second class."""
        return (self.weakest > self.inner) & self.best.isfinite() & self.inner.isfinite() & (self.range > 0)


@dataclass(frozen=True, eq=False)
class BinaryClassifier(DelegatingClassifier):
    """A classifier with the network's features and a separate two-class readout per sample, selected by sample id.

    The logits are scale · (q ± shift / 2) + offset: q are the logits of the readout; the first class has the sign +.
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
        return self.features

    def forward(self, x: Tensor) -> Output:
        """Raise a ModelError: the output depends on the sample that a point belongs to; use `forward_of`."""
        raise ModelError(
            expected="points x and the ids of their samples", got="only points", remedy="Call forward_of(x, id)."
        )

    def forward_of(self, x: Tensor, id: Tensor) -> Output:
        """Return logits (b, 2) from the readouts of the samples `id` (b,), and the detector's score if one is used."""
        at = torch.searchsorted(self.ids, id)
        f, out = self.features.with_detector(x)
        q = self.heads.logits(f, at)
        half = self.shift[at] / 2
        z = self.scale[at][:, None] * (q + torch.stack([half, -half], 1)) + self.offset[at][:, None]
        return replace(out, logits=z)

    def to(self, device: torch.device) -> "BinaryClassifier":
        """Return the classifier unchanged: readouts stay on the device they were fitted on."""
        assert device == self.device, "readouts stay where they were fitted"
        return self


@dataclass(frozen=True)
class BinaryTasks:
    """The readouts that separate the two classes of their sample, sorted by sample id; `at`: positions in the chunk."""

    features: Features
    heads: Heads
    statistics: ReadoutStatistics
    ids: Tensor
    at: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def classifier(self, kappa: float) -> BinaryClassifier:
        """Return the classifier with the decision boundary at d = inner + κ (held − inner) (`ReadoutStatistics`)."""
        f = self.statistics
        shift = f.inner + kappa * (f.held - f.inner)
        half = torch.stack([shift, -shift], 1) / 2
        low, high = (f.lo + half).amin(1), (f.hi + half).amax(1)
        scale = f.range / (high - low)
        return BinaryClassifier(self.features, self.heads, self.ids, shift, scale, f.least - scale * low)


def build_tasks(
    oracle: Oracle, features: Features, readout: Readout, design: Design, chunk: Chunk, threat: Threat, seed: int,
    planted: Planted | None = None,
) -> BinaryTasks | None:  # fmt: skip
    """Fit a readout to every sample, and return the readouts that separate their two classes; None if there are none.

    `planted` holds the points of the second class; if None, these points are drawn at random.
    """
    planted = plant(design, chunk, threat, seed, features.device) if planted is None else planted
    order = chunk.ids.argsort()
    order = order[planted.enough[order]]
    if not len(order):
        return None
    parts = []
    for at in order.split(CHUNK):
        # Chunks have a fixed size, the last sample repeated: equal shapes give equal rounding for every sample.
        full = at[torch.arange(CHUNK, device="cpu").clamp(max=len(at) - 1)]
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
    oracle: Oracle, features: Features, readout: Readout, design: Design, chunk: Chunk, at: Tensor,
    threat: Threat, seed: int, planted: Planted,
) -> tuple[Heads, ReadoutStatistics]:  # fmt: skip
    device = features.device
    x, key = chunk.x[at].to(device), rng.keys(seed, chunk.ids[at].to(device))
    ball = threat.ball(at + chunk.offset, device)
    widths = features.widths(x[:1])
    n, wide = len(x), sum(widths)

    def evaluate(point: Callable[[Tensor, Tensor], Tensor], count: int) -> Tensor:
        """Return the features and logits of `count` points per sample, (n, count, features + classes)."""
        row = torch.arange(n * count, device=device)
        out = [oracle.output(point(piece // count, piece % count)).logits for piece in row.split(oracle.block * 8)]
        return torch.cat(out).view(n, count, -1)

    def inner_point(i: Tensor, j: Tensor) -> Tensor:
        return design.inner_points(ball.subset(i), x[i], key[i], j)

    outer_points = torch.cat([planted.boundary[at], planted.beyond[at]], 1).to(device)
    inner, outer = (
        evaluate(inner_point, design.inner + 1),
        evaluate(lambda i, j: outer_points[i, j], outer_points.shape[1]),
    )
    both = torch.cat([inner, outer], 1)
    with torch.no_grad():
        heads = readout.fit(inner[:, :, :wide].double(), outer[:, :, :wide].double(), widths)
        q = _scores(heads, both[:, :, :wide])
    return heads, _statistics(design, q, both[:, :, wide:].flatten(1), outer_points)


def _statistics(design: Design, q: Tensor, z: Tensor, outer_points: Tensor) -> ReadoutStatistics:
    """Return the statistics of the readouts' logits q (n, points, 2) and the network's logits z on the same points."""
    d = q[:, :, 1] - q[:, :, 0]
    zeros, ends, far = d.split([design.inner + 1, design.boundary, outer_points.shape[1] - design.boundary], 1)
    best, which = ends.max(1)
    return ReadoutStatistics(
        inner=zeros.amax(1),
        weakest=d[:, design.inner + 1 :].amin(1),
        best=best,
        held=torch.cat([best[:, None], far], 1).amin(1),
        witness=outer_points[torch.arange(len(q), device=q.device), which],
        beyond=outer_points[:, design.boundary :],
        lo=q.amin(1),
        hi=q.amax(1),
        least=z.amin(1),
        range=z.amax(1) - z.amin(1),
    )


def _scores(heads: Heads, f: Tensor) -> Tensor:
    """Return each readout's logits on the m points of its own sample, (n, m, 2)."""
    n, m, _ = f.shape
    at = torch.arange(n, device=f.device).repeat_interleave(m)
    rows = f.reshape(n * m, -1)
    parts = zip(rows.split(PIECE), at.split(PIECE), strict=True)
    return torch.cat([heads.logits(part, where) for part, where in parts]).view(n, m, 2)
