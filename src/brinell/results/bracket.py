"""Both ends of the robust accuracy: what is certified, what is not broken, and the samples in between."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.results import row_queries
from brinell.results.format.schema import CERTIFICATE, counted
from brinell.results.row_queries import Ids
from brinell.results.statistics import Proportion, mcnemar

if TYPE_CHECKING:
    from brinell.results.run import Run

State = Literal["broken", "certified", "open"]
BROKEN: State = "broken"
CERTIFIED: State = "certified"
OPEN: State = "open"
# A certificate at eps may state its radius in float32.
SLACK = 1e-6
# Passes of a randomised model contradict a certificate if chance explains them with a smaller probability.
CHANCE = 1e-6


@dataclass(frozen=True)
class MethodResult:
    """What one method certified: numbers of samples, of passes (bound computations or draws) and of seconds.

    `stopped` counts the reasons why samples stayed open, the most frequent first.
    """

    method: str
    samples: int
    certified: int
    passes: int
    seconds: float
    stopped: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        why = "".join(f"; {count} open: {reason}" for reason, count in self.stopped)
        per_sample = self.seconds / max(self.samples, 1)
        return f"{self.method} certified {self.certified} of {self.samples}, {per_sample:.3g} s per sample{why}"


@dataclass(frozen=True)
class Bracket:
    """The certified and the robust accuracy of a Run: the true robust accuracy on its samples lies between them.

    `certified` counts samples that no perturbation breaks, by proof. `robust` counts samples that no attack broke. The
    samples in between are open. `methods` says what each method did. `doubtful` counts certified samples of a
    randomised model that count as broken although chance explains the judging passes.

    >>> print(Bracket(Proportion(40, 100), Proportion(45, 100)))
    40.0 % [30.9, 49.8] certified <= true <= 45.0 % [35.6, 54.8] attacked, n = 100, 5 open
    """

    certified: Proportion
    robust: Proportion
    methods: tuple[MethodResult, ...] = ()
    doubtful: int = 0

    @property
    def open(self) -> int:
        """The number of samples that are neither broken nor certified."""
        return self.robust.k - self.certified.k

    @property
    def width(self) -> float:
        """The share of open samples: robust minus certified accuracy."""
        return self.open / self.robust.n if self.robust.n else float("nan")

    @property
    def lines(self) -> tuple[str, ...]:
        """The bracket and what each method did, one text each."""
        few = f"{self.doubtful} certified samples count as broken by chance alone: judge on more passes (draws)"
        return str(self), *map(str, self.methods), *([few] if self.doubtful else [])

    def __str__(self) -> str:
        low, high = (f"{100 * p.value:.1f} % [{100 * p.low:.1f}, {100 * p.high:.1f}]" for p in self._ends)
        return f"{low} certified <= true <= {high} attacked, n = {self.robust.n:,}, {self.open:,} open"

    @property
    def _ends(self) -> tuple[Proportion, Proportion]:
        return self.certified, self.robust


def bracket(run: "Run") -> Bracket | None:
    """Return both ends of the robust accuracy; None without certificates, or if the threat has no radius."""
    if not run.certificates().num_rows or run.identity.threat.unbounded:
        return None
    states = list(run.states().values())
    n = len(states)
    low, high = Proportion(states.count(CERTIFIED), n), Proportion(n - states.count(BROKEN), n)
    doubtful = len(np.setdiff1d(certified_ids(run), run.survivors())) - len(contradictions(run))
    return Bracket(low, high, _methods(run), doubtful)


def states(run: "Run") -> dict[int, State]:
    """Return the state of every sample by its id: broken (also if misclassified), certified, or open.

    A sample that is both broken and certified counts as broken, because its adversarial can be checked.

    >>> from brinell.results import Run
    >>> sorted(set(states(Run.open("tests/results/golden_run_v1")).values()))
    ['broken', 'open']
    """
    standing, certified = set(run.survivors().tolist()), set(certified_ids(run).tolist())
    return {
        i: BROKEN if i not in standing else CERTIFIED if i in certified else OPEN
        for i in row_queries.samples(run.numbers()).tolist()
    }


def certified_radii(run: "Run") -> dict[int, float]:
    """Return the largest radius that is proved for each sample with a certificate, by sample id."""
    table = run.certificates()
    table = table.filter(pc.fill_null(table["certified"], False))
    radii: dict[int, float] = {}
    for i, radius in zip(table["sample_id"].to_pylist(), table["radius"].to_pylist(), strict=True):
        radii[i] = max(radii.get(i, 0.0), radius or 0.0)
    return radii


def certified_ids(run: "Run") -> Ids:
    """Return the sorted ids of the samples with a certificate for at least the radius of the threat."""
    if run.identity.threat.unbounded:
        return np.zeros(0, np.int64)
    eps, own = run.identity.threat.eps, run.sample_radii
    radii = certified_radii(run).items()
    wanted = {i: (own or {}).get(i, np.inf) if isinstance(eps, list) else eps for i, _ in radii}
    return np.array(sorted(i for i, r in radii if r >= (wanted[i] or 0.0) * (1 - SLACK)), dtype=np.int64)


def contradictions(run: "Run") -> Ids:
    """Return the sorted ids of the samples that are both certified and broken: one of the two is wrong.

    If the threat has no radius, these are the samples that are broken within the radius that is certified. If the model
    is randomised, the judging passes must tell the sample from one whose passes are fooled with probability 1/2.
    """
    if not run.certificates().num_rows:
        return np.zeros(0, np.int64)
    if not run.identity.threat.unbounded:
        both = np.setdiff1d(certified_ids(run), run.survivors())
        return np.array([i for i in both.tolist() if not run.randomised or _clearly_broken(run, i)], dtype=np.int64)
    table, radii = run.rows(), certified_radii(run)
    table = table.filter(pa.array(counted(table)))
    pairs = zip(table["sample_id"].to_pylist(), table["distance"].to_pylist(), strict=True)
    return np.unique(np.array([i for i, d in pairs if (d or 0.0) < radii.get(i, 0.0)], dtype=np.int64))


def _clearly_broken(run: "Run", sample: int) -> bool:
    table = run.rows().filter(pc.equal(run.rows()["sample_id"], sample))
    passes = [judged or [] for judged in table.filter(pa.array(counted(table)))["judged"].to_pylist()]
    fooled = [(sum(judged), len(judged)) for judged in passes]
    return any(2 * k > n and mcnemar(k, n - k) < CHANCE for k, n in fooled)


def _methods(run: "Run") -> tuple[MethodResult, ...]:
    table = run.certificates()
    names = np.array(table["attack"].to_pylist(), dtype=object)
    return tuple(_method(name, table.filter(pa.array(names == name))) for name in dict.fromkeys(names))


def _method(name: str, table: pa.Table) -> MethodResult:
    reasons = Counter(reason for reason in table["stopped"].to_pylist() if reason)
    return MethodResult(
        name.removeprefix(CERTIFICATE),
        len(np.unique(row_queries.ids_of(table))),
        len(np.unique(row_queries.ids_of(table)[np.asarray(pc.fill_null(table["certified"], False), dtype=bool)])),
        pc.sum(table["passes"]).as_py() or 0,
        float(pc.sum(table["seconds"]).as_py() or 0.0),
        tuple(reasons.most_common()),
    )
