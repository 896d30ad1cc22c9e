"""Measure the distance from every sample to the nearest sample of another class; half of it is the largest useful
radius.
"""

import csv
import io
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from brinell.arguments import DataLike
from brinell.core.threat import Threat, norm_name
from brinell.curves.bounds import DistanceBounds, distance_bounds
from brinell.errors import InputError
from brinell.evaluation.coerce import as_problem
from brinell.ops.norms import NORMS
from brinell.ops.rowwise import flat
from brinell.storage import write_output

# Two samples of different classes nearer than this are duplicates, as in the paper's table.
DUPLICATE = 1e-4
# Rows of the distance matrix and pairs that are processed together.
ROWS, PAIRS = {"cpu": 64}, {"cpu": 512}
ROWS_ELSEWHERE, PAIRS_ELSEWHERE = 1024, 65536
# Candidates of a row that are measured first, to rule out others.
FIRST = 8


@dataclass(frozen=True, eq=False)
class Nearest:
    """Per sample, the distance to the nearest sample of another class, and the position of that sample (`partners`).

    `pairs` holds the smallest distance of every pair of classes, None if not measured.
    """

    norm: str
    distances: npt.NDArray[np.float64]
    partners: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.float64] | None = None

    @property
    def duplicates(self) -> npt.NDArray[np.int64]:
        """Positions of the samples with a duplicate in another class (distance below 1e-4)."""
        return np.flatnonzero(self.distances < DUPLICATE)

    @property
    def kept(self) -> npt.NDArray[np.float64]:
        """The distances of all samples that have no duplicate in another class."""
        return self.distances[self.distances >= DUPLICATE]

    @property
    def smallest(self) -> float:
        """The smallest distance between samples of different classes, without duplicates; inf if all are duplicates."""
        return float(self.kept.min(initial=math.inf))

    @property
    def largest(self) -> float:
        """The largest distance from a sample to its nearest sample of another class, without duplicates."""
        return float(self.kept.max(initial=0.0)) if len(self.kept) else math.inf

    def beyond(self, threat: Threat) -> str:
        """Return a warning if the threat's radius exceeds half the smallest distance between classes, or else ""."""
        eps = float(torch.as_tensor(threat.eps, dtype=torch.float64, device="cpu").max())
        if threat.norm.name != self.norm or threat.unlimited or not eps > self.smallest / 2:
            return ""
        closer = int((self.kept < 2 * eps).sum())
        return (
            f"{threat} exceeds half the smallest distance between classes, {self.smallest:.4g} in {self.norm}: the "
            f"balls around {closer} samples touch those of other classes, where no classifier can be right everywhere."
        )


@dataclass(frozen=True)
class ClassDistances:
    """The distances between the classes of a data set; `nearest` has one entry per norm measured."""

    name: str
    n: int
    classes: int
    shape: tuple[int, ...]
    nearest: tuple[Nearest, ...]
    ids: npt.NDArray[np.int64] | None = None
    labels: npt.NDArray[np.int64] | None = None

    def __getitem__(self, norm: str) -> Nearest:
        for found in self.nearest:
            if found.norm == norm:
                return found
        raise InputError(
            expected=f"a norm among {', '.join(f.norm for f in self.nearest)}",
            got=repr(norm),
            remedy=f"Measure this norm too: brinell.distances(data, norms=[{norm!r}]).",
        )

    def warning(self, threat: Threat) -> str:
        """Warn, and return the warning, if the radius exceeds half the smallest distance between classes; else ""."""
        measured = [f for f in self.nearest if f.norm == threat.norm.name]
        text = measured[0].beyond(threat) if measured else ""
        if text:
            warnings.warn(text, stacklevel=2)
        return text

    @property
    def class_labels(self) -> list[int]:
        """The labels of the rows and columns of `Nearest.pairs`."""
        return [] if self.labels is None else np.unique(self.labels).tolist()

    def nearest_classes(self, norm: str) -> tuple[int, int]:
        """Return the two classes whose samples come closest to each other in this norm, without duplicates."""
        assert self.labels is not None
        found = self[norm]
        i = int(np.where(found.distances < DUPLICATE, np.inf, found.distances).argmin())
        return int(self.labels[i]), int(self.labels[found.partners[i]])

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write a .csv file with one line per sample and norm, and a second file with one line per pair of classes.

        The second file is called NAME-pairs.csv; it is written only if the pairs were measured. Return the files
        written.
        """
        file = Path(path)
        if file.suffix != ".csv" or self.ids is None or self.labels is None:
            raise InputError(expected="a path ending in .csv", got=file.name, remedy="For pictures call `plot`.")
        lines = [
            (f.norm, i, y, repr(d), self.ids[p], self.labels[p])
            for f in self.nearest
            for i, y, d, p in zip(
                self.ids.tolist(), self.labels.tolist(), f.distances.tolist(), f.partners, strict=True
            )
        ]
        _write(file, ("norm", "sample_id", "class", "distance", "nearest_id", "nearest_class"), lines)
        of, pairs = self.class_labels, [f for f in self.nearest if f.pairs is not None]
        if not pairs:
            return [file]
        beside = file.with_name(f"{file.stem}-pairs.csv")
        rows = [(f.norm, of[a], of[b], repr(float(d))) for f in pairs for (a, b), d in np.ndenumerate(f.pairs) if a < b]
        _write(beside, ("norm", "class_a", "class_b", "smallest_distance"), rows)
        return [file, beside]

    def plot(self, path: str | os.PathLike[str], others: Sequence["ClassDistances"] = ()) -> Path:
        """Draw the share of samples over the distance, one panel per norm; below, the pairs of classes if measured.

        `others` are further data sets for the same panels. The function needs matplotlib, the extra `report`.
        """
        from brinell.curves.plot import plot_distances

        return plot_distances([self, *others], Path(path))

    def to_json(self) -> dict[str, Any]:
        norms = {
            f.norm: {
                "smallest": f.smallest if math.isfinite(f.smallest) else None,
                "largest": f.largest if math.isfinite(f.largest) else None,
                "duplicates": f.duplicates.tolist(),
                **({} if f.pairs is None else {"pairs": _finite(f.pairs)}),
            }
            for f in self.nearest
        }
        return {"name": self.name, "n": self.n, "classes": self.classes, "shape": list(self.shape), "norms": norms}

    def __str__(self) -> str:
        size = " × ".join(map(str, self.shape))
        lines = [f"{self.name or 'data'}: {self.n} samples, {self.classes} classes, {size}"]
        for f in self.nearest:
            lines.append(f"{f.norm:<5} smallest {f.smallest:.2f}   largest {f.largest:.2f}")
        twins = {f.norm: len(f.duplicates) for f in self.nearest if len(f.duplicates)}
        return "\n".join([*lines, *(f"{k} samples have a duplicate in another class ({n})" for n, k in twins.items())])


def _write(file: Path, head: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    made = io.StringIO(newline="")
    csv.writer(made).writerows([head, *lines])
    write_output(file, made.getvalue())


def _finite(values: npt.NDArray[np.float64]) -> list[list[float | None]]:
    return [[v if math.isfinite(v) else None for v in row] for row in values.tolist()]


def distances(
    problem: DataLike,
    norms: Sequence[str] = tuple(NORMS),
    *,
    device: torch.device | str | None = None,
    pairs: bool = False,
) -> ClassDistances:
    """Return the exact distance of every sample to the nearest sample of another class, in each norm.

    Method: cheap lower bounds on all distances, computed block by block, rule out almost all pairs. The remaining pairs
    are measured, smallest bound first, and the nearest pairs again in float64. Memory is linear in the number of
    samples. As in the paper below, duplicates (distance below 1e-4) do not count in the smallest and largest distances.
    With `pairs` the smallest distance of every pair of classes is measured too, without duplicates. Reference: "How to
    compare adversarial robustness of classifiers from a global perspective", sec. 3.3.

    >>> x = torch.tensor([[0.0, 0.0], [0.0, 0.5], [1.0, 1.0], [0.0, 0.0]])
    >>> found = distances((x, torch.tensor([0, 1, 1, 2])), ["Linf"])
    >>> found["Linf"].distances.tolist(), found["Linf"].duplicates.tolist(), found["Linf"].smallest
    ([0.0, 0.5, 1.0, 0.0], [0, 3], 0.5)
    """
    data, norms = as_problem(problem), [norm_name(norm) for norm in norms]
    for norm in norms:
        if norm not in NORMS:
            raise InputError(
                expected=f"a norm among {', '.join(NORMS)}", got=repr(norm), remedy="Omit `norms` to measure all norms."
            )
    where = torch.device("cpu" if device is None else device)
    chunks = list(data.chunks(4096))
    x, y = torch.cat([flat(c.x) for c in chunks]).to(where), torch.cat([c.y for c in chunks]).to(where)
    classes = len(y.unique())
    if classes < 2:
        raise InputError(
            expected="labels of at least two classes",
            got=f"labels of {classes} class",
            remedy="Pass samples of several classes.",
        )
    shape = data.shape()
    found = tuple(_nearest(x, y, norm, shape, pairs) for norm in norms)
    ids = torch.cat([c.ids for c in chunks])
    return ClassDistances(data.name, len(y), classes, shape, found, ids.numpy(), y.cpu().numpy())


def _nearest(x: Tensor, y: Tensor, norm: str, shape: tuple[int, ...], pairs: bool) -> Nearest:
    size = NORMS[norm]
    bounds = distance_bounds(norm, x, shape)
    rows = ROWS.get(x.device.type, ROWS_ELSEWHERE)
    best = torch.full((len(x),), torch.inf, device=x.device, dtype=torch.float32)
    partner = torch.zeros(len(x), dtype=torch.long, device=x.device)
    group = y.unique(return_inverse=True)[1]
    count = int(group.max()) + 1
    between = torch.full((count, count), torch.inf, device=x.device, dtype=torch.float32)
    for first in range(0, len(x), rows):
        part = torch.arange(first, min(first + rows, len(x)), device=x.device)
        low = bounds.rows(part).masked_fill(y[part][:, None] == y[None], torch.inf)
        if pairs:
            _search_pairs(bounds, part, low, group, between)
        _search(bounds, part, low, best, partner)
    pieces = torch.arange(len(x), device="cpu").split(4096)
    exact = torch.cat([size.size(x[i].double() - x[partner[i]].double()) for i in pieces])
    smallest = between.double().cpu().numpy() if pairs else None
    return Nearest(norm, exact.cpu().numpy(), partner.cpu().numpy(), smallest)


def _search_pairs(bounds: DistanceBounds, part: Tensor, low: Tensor, group: Tensor, between: Tensor) -> None:
    """Lower `between`, the smallest distance of every two classes, by distances of the samples `part` to all samples.

    First, for every sample and class, the pair with the smallest bound is measured, then all pairs not ruled out.
    """
    count = len(between)

    def measure(i: Tensor, c: Tensor) -> None:
        if not len(i):
            return
        d = bounds.exact(i, c)
        d = torch.where(d < DUPLICATE, torch.inf, d).to(between.dtype)
        between.view(-1).scatter_reduce_(0, group[i] * count + group[c], d, "amin")
        between.view(-1).scatter_reduce_(0, group[c] * count + group[i], d, "amin")

    # Every pair of samples once.
    low = low.masked_fill(torch.arange(low.shape[1], device=low.device)[None] <= part[:, None], torch.inf)
    for of in range(count):
        members = (group == of).nonzero()[:, 0]
        least = low[:, members].min(1)
        able = least.values < between[group[part], of]
        measure(part[able], members[least.indices[able]])
    row, column = (low < between[group[part]][:, group]).nonzero(as_tuple=True)
    hope = low[row, column]
    for which in hope.argsort(stable=True).split(PAIRS.get(low.device.type, PAIRS_ELSEWHERE)):
        i, c = part[row[which]], column[which]
        for bound in (None, *bounds.levels):
            able = (hope[which] if bound is None else bound(i, c)) < between[group[i], group[c]]
            i, c = i[able], c[able]
        measure(i, c)


def _search(bounds: DistanceBounds, part: Tensor, low: Tensor, best: Tensor, partner: Tensor) -> None:
    """Write to `best` and `partner` the distance and the position of each sample's nearest sample of another class.

    `low` are lower bounds, inf for samples of the same class; pairs with small bounds are measured first.
    """
    promising = low.topk(min(FIRST, low.shape[1]), dim=1, largest=False).indices
    known = bounds.exact(part.repeat_interleave(promising.shape[1]), promising.flatten()).view_as(promising)
    known = known.masked_fill(low.gather(1, promising).isinf(), torch.inf)
    top = known.min(1)
    best[part], partner[part] = top.values, promising.gather(1, top.indices[:, None])[:, 0]
    low.scatter_(1, promising, torch.inf)
    row, column = (low < best[part][:, None]).nonzero(as_tuple=True)
    # Most promising first: their distances rule out others before finer bounds are computed.
    hope = low[row, column]
    order = hope.argsort(stable=True)
    pairs = PAIRS.get(low.device.type, PAIRS_ELSEWHERE)
    for which in order.split(pairs):
        i, c = part[row[which]], column[which]
        hopeful = hope[which] < best[i]
        i, c = i[hopeful], c[hopeful]
        for finer in bounds.levels:
            hopeful = finer(i, c) < best[i]
            i, c = i[hopeful], c[hopeful]
        if not len(i):
            continue
        d = bounds.exact(i, c)
        # Of several improvements of one row take the smallest, of ties the first.
        order = d.argsort(descending=True, stable=True)
        i, c, d = i[order].flip(0), c[order].flip(0), d[order].flip(0)
        better = d < best[i]
        keep = better & _firsts(i)
        best[i[keep]], partner[i[keep]] = d[keep], c[keep]


def _firsts(i: Tensor) -> Tensor:
    mark = torch.zeros_like(i, dtype=torch.bool)
    if len(i):
        values, place = i.unique(return_inverse=True)
        first = torch.full((len(values),), len(i), device=i.device, dtype=torch.long).scatter_reduce(
            0, place, torch.arange(len(i), device=i.device), "amin"
        )
        mark[first] = True
    return mark
