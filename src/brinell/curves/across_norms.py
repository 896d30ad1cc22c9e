"""Measure adversarial examples of one norm in another norm, and check whether the order of models is the same in
both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np

from brinell.core.threat import threat as threat_of
from brinell.curves.crossings import Crossings, crossings
from brinell.curves.curve import Curve
from brinell.curves.measure import adversarial_distances
from brinell.errors import InputError
from brinell.evaluation.coerce import as_problem
from brinell.results import Difference, Run

# The columns of `NormTransfer.cells`.
TRANSFER = (
    "model",
    "attacked in",
    "measured in",
    "median",
    "median of attacks in this norm",
    "median of the ratios by sample",
)


def measured_in(curve: Curve, problem: Any, norm: str) -> Curve:
    """Return the curve of the same adversarial examples, with their distances measured in another norm.

    This curve lies below the curve of attacks that minimise the other norm, unless those attacks are weak. Its name
    says in which norm the attacks searched. `problem` is the data of the curve.

    >>> import brinell
    >>> images = brinell.data.load("demo", 8)
    >>> found = measured_in(brinell.curve("demo", images, "L2", "minimal-quick", progress=False), images, "Linf")
    >>> found.norm, found.name
    ('Linf', 'demo, attacked in L2')
    """
    if curve.path is None:
        raise InputError(
            expected="a curve with the path of its Run",
            got="a curve without a path",
            remedy="Measure it with brinell.curve.",
        )
    hashes = dict(zip(curve.ids.tolist(), curve.hashes, strict=True))
    found = adversarial_distances(Run.open(curve.path), threat_of(norm, np.inf), as_problem(problem), hashes)
    distances = np.array([found.get(i, np.inf) for i in curve.ids.tolist()])
    return replace(curve, norm=norm, distances=distances, name=f"{curve.name}, attacked in {curve.norm}")


@dataclass(frozen=True)
class NormTransfer:
    """Adversarial examples that minimise one norm, `found_in`, measured in the norm of the curve `direct`.

    `transferred` holds their distances in this norm, and `direct` the smallest distances that attacks in this norm
    found.
    """

    name: str
    found_in: str
    transferred: Curve
    direct: Curve

    @property
    def factor(self) -> float:
        """The median over samples of transferred / direct distance: 1 means no loss; NaN if no sample has both."""
        far, near = self.transferred.paired(self.direct)
        both = np.isfinite(far) & np.isfinite(near) & (near > 0)
        return float(np.median(far[both] / near[both])) if both.any() else float("nan")

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of this transfer in a table with the columns `TRANSFER`."""
        numbers = (f"{self.transferred.median:.4g}", f"{self.direct.median:.4g}", f"{self.factor:.3g}")
        return (self.name, self.found_in, self.direct.norm, *numbers)

    def __str__(self) -> str:
        return f"{self.name}: attacked in {self.found_in}, {self.factor:.3g} times as large in {self.direct.norm}"


def transfer_across_norms(curves: Sequence[Curve], problem: Any) -> tuple[NormTransfer, ...]:
    """Return, for every model and ordered pair of norms, the first norm's adversarials measured in the second norm.

    `curves` are the curves of some models in at least two norms on the same data.
    """
    found = []
    for name in dict.fromkeys(c.name for c in curves):
        for source, direct in permutations([c for c in curves if c.name == name], 2):
            found.append(NormTransfer(name, source.norm, measured_in(source, problem, direct.norm), direct))
    return tuple(found)


@dataclass(frozen=True)
class OrderAcrossNorms:
    """A comparison of two models in two norms: `verdict` says whether both norms agree on the more robust model.

    `in_first` and `in_second` are the differences of the areas under the models' curves in each norm. `crossings` holds
    the crossings of the curves in the first and in the second norm.

    >>> OrderAcrossNorms("A", "B", "Linf", "L2", Difference(-0.1, -0.2, -0.01), Difference(-0.2, -0.3, -0.1)).verdict
    'kept'
    """

    name_a: str
    name_b: str
    first: str
    second: str
    in_first: Difference
    in_second: Difference
    crossings: tuple[Crossings, ...] = ()

    @property
    def verdict(self) -> str:
        """The order in the second norm: "kept" or "reversed" if both differences are significant, else "open"."""
        signs = [np.sign(d.value) if d.low > 0 or d.high < 0 else 0 for d in (self.in_first, self.in_second)]
        if 0 in signs:
            return "open"
        return "kept" if signs[0] == signs[1] else "reversed"

    def __str__(self) -> str:
        met = [f"{len(c.real)} in {n}" for c, n in zip(self.crossings, (self.first, self.second), strict=False)]
        return (
            f"{self.name_a} − {self.name_b}: {self.in_first} in {self.first}, {self.in_second} in {self.second}: "
            f"{self.verdict}{'; significant crossings: ' if met else ''}{', '.join(met)}"
        )


def order_across_norms(
    first: Sequence[Curve], second: Sequence[Curve], eps: tuple[float, float] | None = None
) -> tuple[OrderAcrossNorms, ...]:
    """Return, for every pair of models, whether their order by area is the same in two norms, and their crossings.

    `first` and `second` hold the curves of the same models in the two norms. `eps` are the radii up to which areas are
    computed, one per norm; by default the largest distances found.
    """
    names = [[c.name for c in curves] for curves in (first, second)]
    if names[0] != names[1]:
        raise InputError(
            expected="the same models in both norms, in the same order",
            got=f"{names[0]} and {names[1]}",
            remedy="Pass the curves of both norms in one order, each named after its model.",
        )
    limits = (_largest(first), _largest(second)) if eps is None else eps
    return tuple(
        OrderAcrossNorms(
            first[i].name, first[j].name, first[i].norm, second[i].norm,
            first[i].area_difference(first[j], limits[0]), second[i].area_difference(second[j], limits[1]),
            (crossings(first[i], first[j]), crossings(second[i], second[j])),
        )
        for i, j in combinations(range(len(first)), 2)
    )  # fmt: skip


def _largest(curves: Sequence[Curve]) -> float:
    found = [float(c.distances[np.isfinite(c.distances)].max(initial=0.0)) for c in curves]
    return max(found, default=0.0) or 1.0
