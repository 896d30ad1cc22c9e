"""Out-of-distribution detection: whether low confidence reveals inputs that belong to no class of the model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from brinell.analysis.intervals import Floats, Z, interval_series, percent
from brinell.analysis.predictions import Predictions, predict, read_chunks
from brinell.arguments import DataLike, ModelLike
from brinell.core.dataset import Problem
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.ops import rng
from brinell.ops.rowwise import rows
from brinell.results import Interval, Proportion
from brinell.results.analyses import AnalysisReport, Figure, Measure, Table

# The share of the model's own inputs that must pass when false positives are counted.
KEPT = 0.95
SYNTHETIC = ("gaussian noise", "uniform noise", "blobs")
# Standard deviation of the Gaussian noise, and width of a blob as a share of the image.
SPREAD, WIDTH = 0.25, 0.15


@dataclass(frozen=True)
class ForeignData:
    """The separation by confidence of one foreign (out-of-distribution) data set from the model's own data.

    `auroc` is the probability that one of the model's own inputs has a higher confidence than a foreign input; ties
    count half. `passing` is the share of foreign inputs whose confidence reaches the threshold that at least 95 % of
    the model's own inputs reach. `confidence` is the mean confidence on the foreign inputs.
    """

    name: str
    auroc: Interval
    passing: Proportion
    confidence: float


@dataclass(frozen=True)
class Detection:
    """The results per foreign data set (`sets`); `confidence` is the mean confidence on the model's `n` own inputs."""

    model: str
    n: int
    confidence: float
    sets: tuple[ForeignData, ...]

    def findings(self) -> AnalysisReport:
        """Return a table with one row per foreign data set, and a figure of the AUROCs."""
        columns = ("foreign data", "n", "AUROC %", f"passing at {100 * KEPT:.0f} % kept, %", "mean confidence %")
        table = tuple(
            (s.name, s.passing.n, percent(s.auroc), percent(s.passing), round(100 * s.confidence, 1)) for s in self.sets
        )
        worst = min(self.sets, key=lambda s: s.auroc.value)
        summary = (
            f"Confidence separates {worst.name} worst from the model's own {self.n} inputs (mean confidence "
            f"{100 * self.confidence:.1f} %): AUROC {percent(worst.auroc)} %. At the threshold that "
            f"{100 * KEPT:.0f} % of the own inputs pass, {percent(worst.passing)} % of it pass."
        )
        series = interval_series("AUROC", [s.name for s in self.sets], [s.auroc for s in self.sets])
        figure = Figure("Detection of foreign inputs", "bars", "foreign data", "AUROC (%)", (series,))
        name = "Out-of-distribution detection"
        return AnalysisReport("ood", name, summary, (Table(name, columns, table),), (figure,))

    def measures(self) -> tuple[Measure, ...]:
        """Return the area under the ROC curve for each foreign data set (Croce et al. 2021, fig. 5)."""
        return tuple(Measure.percent(f"AUROC on {s.name}, %", s.auroc) for s in self.sets)


def detection(
    classifier: ModelLike, problem: DataLike, sets: "Mapping[str, DataLike] | None" = None,
    *, seed: int = 0, device: torch.device | str | None = None,
) -> Detection:  # fmt: skip
    """Measure how well confidence separates the model's own inputs from the inputs of other data sets.

    Method: exact area under the ROC curve of the largest class probability; ties count half. `sets` maps names to
    problems, whose labels are ignored; the default is three kinds of noise, keyed by the seed (`synthetic`). Cost: one
    forward per sample. Interval: see `auroc_interval`. Reference: Hendrycks & Gimpel 2017.

    >>> import brinell
    >>> sets = detection("demo", brinell.data.load("demo", 50)).sets
    >>> [s.name for s in sets], all(0 <= s.auroc.low <= s.auroc.high <= 1 for s in sets)
    (['gaussian noise', 'uniform noise', 'blobs'], True)
    """
    model, data = coerce.as_classifier(classifier, device), coerce.as_problem(problem)
    foreign = synthetic(data, seed) if sets is None else {k: coerce.as_problem(v) for k, v in sets.items()}
    if not foreign:
        raise InputError(
            expected="at least one foreign data set",
            got="none",
            remedy="Pass `sets` as {name: problem}, or omit `sets` for three kinds of noise.",
        )
    own = predict(model, read_chunks(data), labelled=False)
    found = tuple(
        _foreign_data(name, own, predict(model, read_chunks(other), labelled=False)) for name, other in foreign.items()
    )
    return Detection(model.name, len(own), float(np.exp(own.log_confidence).mean()), found)


def _foreign_data(name: str, own: Predictions, other: Predictions) -> ForeignData:
    ours, theirs = own.log_confidence, other.log_confidence
    # The largest threshold that at least the wanted share of the own inputs passes.
    threshold = np.sort(ours)[math.floor((1 - KEPT) * len(ours) + 1e-9)]
    area = auroc(ours, theirs)
    return ForeignData(
        name,
        Interval(area, *auroc_interval(area, len(ours), len(theirs)), len(ours) + len(theirs)),
        Proportion.of(theirs >= threshold),
        float(np.exp(theirs).mean()),
    )


def auroc(positive: Floats, negative: Floats) -> float:
    """Return the probability that a positive score exceeds a negative one; ties count half.

    Method: count in integers, for every positive score, the smaller and the equal negative scores.

    >>> auroc(np.array([2.0, 1.0]), np.array([1.0, 0.0]))
    0.875
    """
    low = np.sort(negative)
    below = np.searchsorted(low, positive, side="left").astype(np.int64)
    upto = np.searchsorted(low, positive, side="right").astype(np.int64)
    return float((below.sum() + upto.sum()) / (2 * len(positive) * len(negative)))


def auroc_interval(area: float, m: int, n: int) -> tuple[float, float]:
    """Return (low, high), the 95 % interval of the AUROC `area` from m positives and n negatives.

    Method: the bounds θ solve |θ − area| = z √V(θ), with Hanley & McNeil's (1982) variance V for equal sample sizes.
    Reference: Newcombe, Statistics in Medicine 25 (2006), 559-573, method 5.

    >>> tuple(round(v, 3) for v in auroc_interval(1.0, 50, 50))
    (0.96, 1.0)
    """

    def width(t: float) -> float:
        even = (m + n) / 2 - 1
        return Z * math.sqrt(t * (1 - t) / (m * n) * (1 + even * (1 - t) / (2 - t) + even * t / (1 + t)))

    def bound(inside: float, outside: float) -> float:
        for _ in range(200):
            t = (inside + outside) / 2
            if abs(t - area) <= width(t):
                inside = t
            else:
                outside = t
        return inside

    low = bound(area, 0.0) if area > 0 else 0.0
    return low, bound(area, 1.0) if area < 1 else 1.0


def synthetic(problem: DataLike, seed: int = 0, n: int | None = None) -> dict[str, Problem]:
    """Return three problems by name: Gaussian noise, uniform noise and smooth blobs, in the input shape of `problem`.

    Each has `n` inputs (default: as many as `problem`). If `problem` is streamed, the noise is generated when read.

    >>> tuple(synthetic((torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long)))["blobs"].x.shape)
    (4, 1, 8, 8)
    """
    data = coerce.as_problem(problem)
    count = len(data) if n is None else n
    sets = {name: _Noise(name, data.shape(), count, seed) for name in SYNTHETIC}
    if data.streamed:
        return {name: Problem(noise, name=name) for name, noise in sets.items()}
    labels = torch.zeros(count, dtype=torch.long, device="cpu")
    return {
        name: Problem(noise.rows(torch.arange(count, device="cpu")), labels, name=name) for name, noise in sets.items()
    }


class _Noise(Dataset[Any]):
    """A data set of one kind of noise, generated on access; an input depends only on seed, kind and index."""

    def __init__(self, name: str, shape: tuple[int, ...], count: int, seed: int) -> None:
        self.name, self.shape, self.count, self.seed = name, shape, count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.__getitems__([i])[0]

    def __getitems__(self, places: list[int]) -> list[tuple[Tensor, int]]:
        return [(x, 0) for x in self.rows(torch.tensor(places, dtype=torch.long, device="cpu"))]

    def rows(self, places: Tensor) -> Tensor:
        key = rng.fold(rng.keys(self.seed, places), rng.digest(self.name))
        normal, even, _ = SYNTHETIC
        if self.name == normal:
            return (0.5 + SPREAD * rng.normal(key, self.shape)).clamp(0, 1)
        return rng.uniform(key, self.shape) if self.name == even else _blobs(key, self.shape)


def _blobs(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return noise, one input per key, blurred along the last two axes (or the only axis) and rescaled to [0, 1]."""
    x = rng.uniform(key, shape)
    for axis in range(x.ndim - min(len(shape), 2), x.ndim):
        x = _blurred(x, axis)
    flat = x.flatten(1)
    low, high = (rows(v, x) for v in (flat.amin(1), flat.amax(1)))
    return ((x - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)


def _blurred(x: Tensor, axis: int) -> Tensor:
    """Return x convolved with a Gaussian along one axis, with periodic boundary."""
    size = x.shape[axis]
    far = torch.minimum(torch.arange(size, device="cpu"), size - torch.arange(size, device="cpu")).double()
    weight = torch.exp(-((far / max(WIDTH * size / 2, 0.5)) ** 2) / 2)
    ring = torch.stack([weight.roll(k) for k in range(size)]) / weight.sum()
    return torch.tensordot(x.double(), ring, dims=([axis], [0])).movedim(-1, axis).float()
