"""Both ends of the robust accuracy: what is certified, what is not broken, and the samples in between."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.results import row_queries
from brinell.results.format.schema import CERTIFICATE, counted
from brinell.results.row_queries import Ids, StageResult
from brinell.results.statistics import Proportion, mcnemar

if TYPE_CHECKING:
    from brinell.results.run import Run

State = Literal["broken", "certified", "open"]
BROKEN: State = "broken"
CERTIFIED: State = "certified"
OPEN: State = "open"
# The method whose certificates are wrong with a small probability.
SMOOTHING = "smoothing"
# A certificate at eps may state its radius in float32.
SLACK = 1e-6
# Passes of a randomised model contradict a certificate if chance explains them with a smaller probability.
CHANCE = 1e-6


@dataclass(frozen=True)
class MethodResult:
    """What one method decided: numbers of samples, of passes (bound computations or draws) and of seconds.

    `samples` counts those that it certified, broke, or bounded best of all methods without a decision. `stopped` counts
    the reasons why samples are open, the most frequent first.

    >>> print(MethodResult("crown", 22, 20, 22, 1.1, (("crown: the bound is not above 0", 2),)))
    crown: 20 certified, 2 open (crown: the bound is not above 0), 0.05 s per sample
    >>> print(MethodResult("branch-and-bound", 1, 0, 9, 0.2, broken=1))
    branch-and-bound: 0 certified, 1 broken (it found an adversarial), 0.2 s per sample
    """

    method: str
    samples: int
    certified: int
    passes: int
    seconds: float
    stopped: tuple[tuple[str, int], ...] = ()
    broken: int = 0

    def __str__(self) -> str:
        broke = f", {self.broken:,} broken (it found an adversarial)" if self.broken else ""
        left = "".join(f", {count:,} open ({reason})" for reason, count in self.stopped)
        per_sample = self.seconds / max(self.samples, 1)
        return f"{self.method}: {self.certified:,} certified{broke}{left}, {per_sample:.3g} s per sample"


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
    def settled(self) -> bool:
        """Whether every sample is decided: none is open."""
        return not self.open

    @property
    def narrow(self) -> bool:
        """Whether the open samples lower the robust accuracy by at most its sampling error, half of its interval."""
        return self.width <= (self.robust.high - self.robust.low) / 2

    @property
    def short(self) -> str:
        """Both ends in per cent.

        >>> Bracket(Proportion(40, 100), Proportion(45, 100)).short
        '40.0 % certified <= true robust accuracy on these samples <= 45.0 % attacked'
        """
        low, high = (f"{100 * p.value:.1f} %" for p in self._ends)
        return f"{low} certified <= true robust accuracy on these samples <= {high} attacked"

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


def proved(run: "Run") -> Bracket | None:
    """Return the bracket if it rests on proofs alone: not on chance (smoothing), and without a contradiction.

    The user's own certifiers count as no proof here: nothing is known of what they compute.
    """
    found = run.bracket
    if found is None or not found.robust.n or run.randomised or len(contradictions(run)):
        return None
    if any("methods" not in call for call in run.manifest.get("certifiers") or ()):
        return None
    return None if any(method.method == SMOOTHING for method in found.methods) else found


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
    """Return what each method did, in the order in which they run."""
    table = run.certificates()
    names = np.array([_decided_by(row) for row in table.select(DECIDED).to_pylist()], dtype=object)
    is_open = np.isin(row_queries.ids_of(table), [i for i, state in run.states().items() if state == OPEN])
    calls = (call.get("methods") for call in run.manifest.get("certifiers") or ())
    order = [*(name for methods in calls if isinstance(methods, list) for name in methods), *names.tolist()]
    present = sorted(set(names.tolist()), key=order.index)
    return tuple(_method(name, table.filter(pa.array(names == name)), is_open[names == name]) for name in present)


def by_proof(run: "Run") -> list[StageResult]:
    """Return the samples that proofs examined and broke with counterexamples, as the result of one stage; or nothing.

    The stage is named after the methods that found them.
    """
    table = run.certificates()
    finders = dict.fromkeys(method.method for method in _methods(run) if method.broken)
    broken = len(np.unique(row_queries.ids_of(table)[counted(table)]))
    tried = len(np.unique(row_queries.ids_of(table)))
    return [StageResult(f"proof ({', '.join(finders)})", tried, broken)] if finders else []


DECIDED = ["attack", "broken", "verified", "stopped"]


def _decided_by(row: Mapping[str, Any]) -> str:
    """Return the method that broke the sample of a row, else the one with the best bound.

    >>> row = {"attack": "certificate:crown", "broken": True, "verified": True, "stopped": "milp: a counterexample"}
    >>> _decided_by(row), _decided_by({**row, "broken": False})
    ('milp', 'crown')
    """
    finder, colon, _ = (row["stopped"] or "").partition(": ")
    return finder if row["broken"] and colon else row["attack"].removeprefix(CERTIFICATE)


def _method(name: str, table: pa.Table, is_open: npt.NDArray[np.bool_]) -> MethodResult:
    ids, certified = row_queries.ids_of(table), np.asarray(pc.fill_null(table["certified"], False), dtype=bool)
    reasons = Counter(reason for reason in table.filter(pa.array(is_open))["stopped"].to_pylist() if reason)
    return MethodResult(
        name,
        len(np.unique(ids)),
        len(np.unique(ids[certified])),
        pc.sum(table["passes"]).as_py() or 0,
        float(pc.sum(table["seconds"]).as_py() or 0.0),
        tuple(reasons.most_common()),
        len(np.unique(ids[counted(table)])),
    )
