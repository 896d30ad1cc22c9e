"""A robustness curve: the share of samples that break within each radius."""

import csv
import io
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from brinell.core.threat import TOLERANCE, parse_eps
from brinell.errors import InputError, RunError
from brinell.results import Difference, Proportion, Run, counted, mcnemar
from brinell.storage import write_output

if TYPE_CHECKING:
    from brinell.curves.crossings import Crossings

Values = npt.NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Slope:
    """The numbers of samples that break within `width` below and within `width` above the radius eps.

    >>> Slope(eps=0.1, width=0.05, below=2, above=20).ratio
    10.0
    """

    eps: float
    width: float
    below: int
    above: int

    @property
    def ratio(self) -> float:
        """`above` divided by `below`: inf if only `below` is 0, NaN if both are 0."""
        return self.above / self.below if self.below else (math.inf if self.above else math.nan)

    @property
    def p_value(self) -> float:
        """Exact binomial p-value of the hypothesis that samples break below or above eps with probability 1/2 each."""
        return mcnemar(self.below, self.above)

    def __str__(self) -> str:
        return (
            f"within {self.width:.4g} of eps = {self.eps:.4g}: {self.below} samples break below, {self.above} above "
            f"(p = {self.p_value:.2g})"
        )


@dataclass(frozen=True)
class Agreement:
    """The comparison of a curve with an evaluation (Run) at one radius: the samples that only one of the two breaks.

    `only_run` are the ids of samples that the curve's attacks missed, `only_curve` of samples that the Run missed.

    >>> print(Agreement(0.1, 8, (3,), ()))
    at eps = 0.1: 8 samples alike, 1 broken only by the evaluation, 0 only by the curve
    """

    eps: float
    alike: int
    only_run: tuple[int, ...]
    only_curve: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"at eps = {self.eps:.4g}: {self.alike} samples alike, {len(self.only_run)} broken only by the evaluation, "
            f"{len(self.only_curve)} only by the curve"
        )


@dataclass(frozen=True, eq=False)
class Curve:
    """A robustness curve: the smallest distance found for every sample, 0 if misclassified, inf if no attack succeeded.

    Every distance is an upper bound, so the curve R(eps), the share of samples with a distance of at most eps, is a
    lower bound on the true curve. A sample that no attack broke never counts as broken: then the curve ends below 1.
    `certified` are the radii within which samples are proved to be robust, 0 if nothing is proved; None if nothing was
    certified. The true curve then lies between `at` and `at_most`.

    >>> c = Curve("L2", np.array([0, 1, 2, 3]), np.array([0.0, 0.5, 0.5, np.inf]))
    >>> print(c.at(0.5))
    75.0 % [30.1, 95.4], n = 4
    >>> c.area(1.0), c.unresolved
    (0.5, 1)
    """

    norm: str
    ids: npt.NDArray[np.int64]
    distances: Values
    name: str = ""
    hashes: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    path: Path | None = None
    notes: tuple[str, ...] = ()
    certified: Values | None = None

    def __post_init__(self) -> None:
        d = np.asarray(self.distances, dtype=np.float64)
        if d.shape != self.ids.shape or d.ndim != 1 or not len(d) or np.isnan(d).any() or (d < 0).any():
            raise InputError(
                expected="one distance for every id, a number of at least 0 or inf",
                got=f"{len(self.ids)} ids and distances of shape {d.shape}, or NaN or negative distances",
                remedy="Write 0 for misclassified samples and inf for samples that no attack broke.",
            )

    @property
    def n(self) -> int:
        return len(self.distances)

    @property
    def unresolved(self) -> int:
        """The number of samples that no attack broke (distance inf)."""
        return int(np.isinf(self.distances).sum())

    @property
    def clean_error(self) -> Proportion:
        """The share of misclassified clean samples: R(0)."""
        return self.at(0.0)

    @property
    def median(self) -> float:
        """The smallest radius at which at least half of the samples are broken; inf if no radius breaks half."""
        return float(np.sort(self.distances)[(self.n - 1) // 2])

    def broken(self, eps: float) -> npt.NDArray[np.bool_]:
        """Return a mask of the samples that break within eps."""
        return np.asarray((self.distances <= eps * (1 + TOLERANCE)) & np.isfinite(self.distances))

    def at(self, eps: float | str) -> Proportion:
        """Return R(eps), the robust error, with its interval; eps may be a text such as "8/255"."""
        return Proportion(int(self.broken(parse_eps(eps)).sum()), self.n)

    def accuracy(self, eps: float | str) -> Proportion:
        """Return the robust accuracy at eps, an upper bound: the share of samples that no attack broke within eps.

        >>> print(Curve("L2", np.array([0, 1, 2]), np.array([0.0, 0.5, np.inf])).accuracy(0.4))
        66.7 % [20.8, 93.9], n = 3
        """
        return Proportion(self.n - self.at(eps).k, self.n)

    def certified_accuracy(self, eps: float | str) -> Proportion:
        """Return the certified accuracy at eps, a lower bound: the share of samples proved to be robust there.

        >>> c = Curve("L2", np.array([0, 1]), np.array([0.5, 0.5]), certified=np.array([0.0, 0.3]))
        >>> c.certified_accuracy(0.2).k, c.accuracy(0.2).k
        (1, 2)
        """
        return Proportion(self.n - self.at_most(eps).k, self.n)

    def at_most(self, eps: float | str) -> Proportion:
        """Return an upper bound on the true robust error at eps: the share of samples not proved to be robust there.

        >>> c = Curve("L2", np.array([0, 1]), np.array([0.5, 0.5]), certified=np.array([0.0, 0.3]))
        >>> c.at(0.2).k, c.at_most(0.2).k, c.at_most(0.4).k
        (0, 1, 2)
        """
        radii = np.zeros(self.n) if self.certified is None else self.certified
        proved = (radii >= parse_eps(eps)) & (self.distances > 0)
        return Proportion(self.n - int(proved.sum()), self.n)

    def steps(self) -> tuple[Values, Values]:
        """Return 0 and the radii at which R jumps, and the value of R from each of these radii to the next."""
        finite = np.sort(self.distances[np.isfinite(self.distances)])
        x, count = np.unique(np.concatenate([[0.0], finite]), return_counts=True)
        count[0] -= 1  # the zero added in front is no sample
        return x, np.cumsum(count) / self.n

    def band(self, confidence: float = CONFIDENCE) -> float:
        """Return h such that R ± h contains, at all radii, the curve of the whole population with this confidence.

        Reference: Dvoretzky, Kiefer & Wolfowitz 1956 with the constant of Massart 1990. The band accounts for the
        choice of samples, not for attacks that miss the nearest adversarial.
        """
        _deviations(confidence)
        return math.sqrt(math.log(2 / (1 - confidence)) / (2 * self.n))

    def area(self, eps: float) -> float:
        """Return the area under R from 0 to eps; divided by eps it is the mean robust error up to eps."""
        _positive(eps)
        return float(eps - np.minimum(self.distances, eps).mean())

    def slope(self, eps: float, width: float | None = None) -> Slope:
        """Count the samples that break just below and just above a radius, such as the radius of adversarial training.

        The two ranges have the same `width` (default: half of eps; at most eps), since the exact test of `Slope` needs
        equal widths. Misclassified samples are left out.
        """
        _positive(eps)
        w = eps / 2 if width is None else width
        if not 0 < w <= eps:
            raise InputError(
                expected=f"a width above 0 and at most eps = {eps:.4g}",
                got=f"{w:.4g}",
                remedy="Omit `width` for half of eps.",
            )
        d = self.distances
        below = int(((d > max(eps - w, 0.0)) & (d <= eps)).sum())
        return Slope(eps, w, below, int(((d > eps) & (d <= eps + w)).sum()))

    def paired(self, other: "Curve") -> tuple[Values, Values]:
        """Return this curve's and the other curve's distances of the samples that both contain, in the same order."""
        if self.norm != other.norm:
            raise InputError(
                expected=f"two curves in {self.norm}",
                got=f"a curve in {other.norm}",
                remedy="Measure both in one norm.",
            )
        ids, here, there = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        if not len(ids):
            raise InputError(
                expected="curves with common samples",
                got="curves without a common sample id",
                remedy="Measure both on the same data.",
            )
        pairs = zip(here, there, strict=True) if self.hashes and other.hashes else ()
        if any(self.hashes[i] != other.hashes[j] for i, j in pairs):
            raise InputError(
                expected="the same input for the same sample id in both curves",
                got="different inputs under one id",
                remedy="Measure both curves on the same data.",
            )
        return self.distances[here], other.distances[there]

    def crossings(self, other: "Curve", confidence: float = CONFIDENCE) -> "Crossings":
        """Return where this curve and another curve cross, and which of these crossings are significant."""
        from brinell.curves.crossings import crossings

        return crossings(self, other, confidence)

    def optimality(self, *best: "Curve") -> float:
        """Return AttackBench's local optimality: 1 if no curve in `best`, of the same model, has smaller distances.

        >>> ids = np.arange(3)
        >>> weak, strong = (Curve("L2", ids, np.array(d)) for d in ([0.0, 2.0, 4.0], [0.0, 1.0, 4.0]))
        >>> weak.optimality(strong), strong.optimality(weak)
        (0.6666666666666666, 1.0)
        """
        from brinell.curves.optimality import optimality

        return optimality(self, *best)

    def area_difference(self, other: "Curve", eps: float, confidence: float = CONFIDENCE) -> Difference:
        """Return (this area − other area) / eps with a paired interval; below 0, this curve's model is more robust."""
        a, b = (np.minimum(d, eps) / eps for d in self.paired(other))
        gap = b - a
        half = _deviations(confidence) * float(gap.std(ddof=1)) / math.sqrt(len(gap)) if len(gap) > 1 else math.nan
        value = float(gap.mean())
        return Difference(value, value - half, value + half)

    def against(self, run: Run) -> Agreement:
        """Compare this curve with an evaluation at a fixed radius in the same norm, sample by sample."""
        norm, eps = run.identity.threat.norm, run.identity.threat.eps
        if norm != self.norm or not isinstance(eps, int | float):
            raise RunError(
                expected=f"a Run with one radius in {self.norm}",
                got=f"a Run in {norm} with eps {eps}",
                remedy=f"Pass a Run of an evaluation with the threat {self.norm}(eps).",
            )
        known = np.isin(self.ids, np.asarray(run.rows()["sample_id"]))
        by_curve, by_run = self.broken(eps), ~np.isin(self.ids, run.survivors())
        only_run, only_curve = known & by_run & ~by_curve, known & by_curve & ~by_run
        alike = int((known & (by_run == by_curve)).sum())
        return Agreement(float(eps), alike, *(tuple(self.ids[m].tolist()) for m in (only_run, only_curve)))

    def joined(self, other: "Curve") -> "Curve":
        """Return the curve with the smaller of two distances per sample; model and samples of both must be the same."""
        if not np.array_equal(self.ids, other.ids):
            raise InputError(
                expected="two curves with the same sample ids",
                got="curves with different ids",
                remedy="Measure both on the same data.",
            )
        best = np.minimum(self.distances, self.paired(other)[1])
        certified = self._joined_radii(other)
        return replace(
            self, distances=best, certified=certified, attacks=tuple(dict.fromkeys((*self.attacks, *other.attacks)))
        )

    def _joined_radii(self, other: "Curve") -> Values | None:
        known = [c.certified for c in (self, other) if c.certified is not None]
        return None if not known else np.asarray(np.max(known, axis=0))

    def to_json(self, folder: Path | None = None) -> dict[str, Any]:
        """Return the curve as plain data for scripts; the distances of unresolved samples are null.

        With `folder`, for files to share: the path of the Run is relative to it, or only the name of the Run's folder.
        """
        path = self.path
        if path is not None and folder is not None:
            path, folder = path.absolute(), folder.absolute()
            path = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
        return {
            "norm": self.norm, "name": self.name, "n": self.n, "unresolved": self.unresolved,
            "misclassified": int((self.distances == 0).sum()), "attacks": list(self.attacks),
            "ids": self.ids.tolist(), "distances": [d if math.isfinite(d) else None for d in self.distances.tolist()],
            "hashes": list(self.hashes), "notes": list(self.notes), "path": str(path) if path else None,
            "certified": None if self.certified is None else self.certified.tolist(),
        }  # fmt: skip

    @staticmethod
    def from_json(stored: dict[str, Any]) -> "Curve":
        """Return the curve that `to_json` stored.

        >>> c = Curve("L2", np.array([4, 7]), np.array([0.5, np.inf]), "mine")
        >>> Curve.from_json(c.to_json()).distances.tolist()
        [0.5, inf]
        """
        d = [math.inf if v is None else v for v in stored["distances"]]
        ids, path = np.asarray(stored["ids"], dtype=np.int64), stored.get("path")
        lists = {key: tuple(stored.get(key, ())) for key in ("hashes", "attacks", "notes")}
        name, path = stored.get("name", ""), None if path is None else Path(path)
        proved = stored.get("certified")
        certified = None if proved is None else np.asarray(proved, dtype=np.float64)
        return Curve(
            stored["norm"], ids, np.asarray(d, dtype=np.float64), name, path=path, certified=certified, **lists
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .csv file (a line per sample: id and distance, inf if unresolved) or a .json file with all fields."""
        file = Path(path)
        if file.suffix == ".json":
            write_output(file, json.dumps(self.to_json(file.parent)))
            return
        if file.suffix != ".csv":
            raise InputError(
                expected="a path ending in .csv or .json", got=file.name, remedy="For pictures call `plot`."
            )
        made = io.StringIO(newline="")
        writer = csv.writer(made)
        columns = [self.distances, *([] if self.certified is None else [self.certified])]
        writer.writerow(["sample_id", "distance", "certified"][: 1 + len(columns)])
        texts = (map(repr, column.tolist()) for column in columns)
        writer.writerows(zip(self.ids.tolist(), *texts, strict=True))
        write_output(file, made.getvalue())

    def plot(
        self, path: str | os.PathLike[str], others: Sequence["Curve"] = (),
        *, marks: Sequence[float] = (), title: str = "", limit: float | None = None,
    ) -> Path:  # fmt: skip
        """Draw this curve and others (one panel per norm) as .svg, .png or .pdf; `marks` are radii for dashed lines.

        `limit` is the largest radius shown. The function needs matplotlib: pip install 'brinell[report]'.
        """
        from brinell.curves.plot import plot

        return plot([self, *others], Path(path), marks=marks, title=title, limit=limit)

    def __str__(self) -> str:
        lines = [
            f"{self.name or 'model'}, {self.norm}: {self.n} samples, clean error {self.clean_error}",
            f"median distance {self.median:.4g}; {self.unresolved} unresolved; attacks: {', '.join(self.attacks)}",
        ]
        if self.certified is not None:
            proved = self.certified[self.distances > 0]
            median = float(np.median(proved)) if len(proved) else 0.0
            lines.append(f"median certified radius {median:.4g} of {len(proved)} samples classified correctly")
        return "\n".join([*lines, *self.notes])


def smallest_distances(run: Run) -> dict[int, float]:
    """Return a dict from sample id to the smallest verified distance in a Run: 0 if misclassified, inf if unresolved.

    >>> len(smallest_distances(Run.open("tests/results/golden_run_v1")))
    6
    """
    rows = run.rows()
    columns = rows["sample_id"].to_pylist(), rows["distance"].to_pylist(), counted(rows).tolist()
    best: dict[int, float] = {}
    for i, d, ok in zip(*columns, strict=True):
        best[i] = min(best.get(i, math.inf), d if ok and d is not None else math.inf)
    return best


def _deviations(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(expected="a confidence between 0 and 1", got=f"{confidence}", remedy="Pass 0.95 for 95 %.")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _positive(eps: float) -> None:
    if not (eps > 0 and math.isfinite(eps)):
        raise InputError(expected="a finite radius above 0", got=f"{eps}", remedy="Pass e.g. 8/255.")
