"""Compare two Runs on the same samples: where outcomes differ, how much, and whether chance explains it."""

import os
from dataclasses import dataclass, field

import numpy as np

from brinell.errors import RunError
from brinell.finding import n_samples
from brinell.results import row_queries
from brinell.results.bracket import CERTIFIED
from brinell.results.format.manifest import differences
from brinell.results.format.schema import Evidence, is_evidence
from brinell.results.run import Run
from brinell.results.statistics import Difference, Proportion, mcnemar, paired_difference

SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Comparison:
    """The outcomes of two Runs, A and B, on their common samples.

    `both` counts the samples that are robust in A and in B, `neither` counts the samples that are robust in neither
    Run. `ids_only_a` are the ids of samples that are robust in A but not in B, `ids_only_b` are the ids of samples that
    are robust in B but not in A. `certified` are the certified accuracies of A and B on the common samples, None
    without certificates. `verdicts` are the levels of both verdicts, `runs` are A and B if they were read.

    >>> result = Comparison("resnet", "vit", both=90, neither=4, ids_only_a=(1, 2, 5), ids_only_b=(7, 8, 9))
    >>> print(result.robust_a, result.p_value)
    93.0 % [86.3, 96.6], n = 100 1.0
    """

    name_a: str
    name_b: str
    both: int
    neither: int
    ids_only_a: tuple[int, ...]
    ids_only_b: tuple[int, ...]
    notes: tuple[str, ...] = ()
    certified: tuple[Proportion | None, Proportion | None] = (None, None)
    verdicts: tuple[str, str] = ("", "")
    runs: tuple[Run, ...] = field(default=(), repr=False, compare=False)

    @property
    def only_a(self) -> int:
        """Number of samples robust in A and not in B."""
        return len(self.ids_only_a)

    @property
    def only_b(self) -> int:
        """Number of samples robust in B and not in A."""
        return len(self.ids_only_b)

    @property
    def n(self) -> int:
        """Number of common samples."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def agreement(self) -> Proportion:
        """Share of the common samples that are robust in both Runs or in neither."""
        return Proportion(self.both + self.neither, self.n)

    @property
    def robust_a(self) -> Proportion:
        """Robust accuracy of A on the common samples."""
        return Proportion(self.both + self.only_a, self.n)

    @property
    def robust_b(self) -> Proportion:
        """Robust accuracy of B on the common samples."""
        return Proportion(self.both + self.only_b, self.n)

    @property
    def difference(self) -> Difference:
        """Robust accuracy of A minus robust accuracy of B, with Newcombe's paired 95 % interval."""
        return paired_difference(self.both, self.only_a, self.only_b, self.neither)

    @property
    def p_value(self) -> float:
        """Exact two-sided p-value of McNemar's test of equal robust accuracy in A and B."""
        return mcnemar(self.only_a, self.only_b)

    def __str__(self) -> str:
        only_a, only_b = n_samples(self.only_a), n_samples(self.only_b)
        conclusion = "differ" if self.p_value < SIGNIFICANCE else "cannot be distinguished"
        return "\n".join(
            [
                f"A is {self.name_a}, B is {self.name_b}; they have {n_samples(self.n)} in common.",
                f"Robust accuracy of A: {self.robust_a}. Robust accuracy of B: {self.robust_b}.",
                *(
                    [f"Verdict on A: {self.verdicts[0]}. Verdict on B: {self.verdicts[1]}."]
                    if any(self.verdicts)
                    else []
                ),
                *(
                    f"Certified accuracy of {side}: {p}."
                    for side, p in zip("AB", self.certified, strict=True)
                    if p is not None
                ),
                f"A is robust on {only_a} where B is not, B on {only_b} where A is not.",
                f"Both are robust on {self.both}, neither on {self.neither}; they agree on {self.agreement}.",
                f"The difference A - B is {self.difference} (95 %, Newcombe's paired score interval).",
                f"Exact McNemar test: p = {self.p_value:.3g}, so at the 5 % level A and B {conclusion}.",
                *self.notes,
            ]
        )


def compare(a: "Run | str | os.PathLike[str]", b: "Run | str | os.PathLike[str]") -> Comparison:
    """Compare two Runs, given as Runs or as their folders, on the sample ids that both have.

    Raise a RunError if a sample has different inputs in the two Runs.

    >>> run = Run.open("tests/results/golden_run_v1")
    >>> print(compare(run, run).agreement)
    100.0 % [61.0, 100.0], n = 6
    """
    a, b = (Run.open(run) for run in (a, b))
    ids = _common(a, b)
    in_a, in_b = np.isin(ids, a.survivors()), np.isin(ids, b.survivors())
    return Comparison(
        name_a=_name(a),
        name_b=_name(b),
        both=int((in_a & in_b).sum()),
        neither=int((~in_a & ~in_b).sum()),
        ids_only_a=tuple(ids[in_a & ~in_b].tolist()),
        ids_only_b=tuple(ids[in_b & ~in_a].tolist()),
        notes=_notes(a, b),
        certified=(_certified(a, ids), _certified(b, ids)),
        verdicts=(a.verdict.level, b.verdict.level),
        runs=(a, b),
    )


def _certified(run: Run, ids: row_queries.Ids) -> Proportion | None:
    if run.bracket is None:
        return None
    states = run.states()
    return Proportion(sum(states.get(i) == CERTIFIED for i in ids.tolist()), len(ids))


def _common(a: Run, b: Run) -> row_queries.Ids:
    hashes_a, hashes_b = _hashes(a), _hashes(b)
    ids = sorted(hashes_a.keys() & hashes_b.keys())
    if not ids:
        raise RunError(
            expected="Runs with common samples",
            got=f"no sample id in both {a.path} and {b.path}",
            remedy="Evaluate both models on the same data.",
        )
    changed = [i for i in ids if hashes_a[i] != hashes_b[i]]
    if changed:
        raise RunError(
            expected="the same input for the same sample id in both Runs",
            got=f"{n_samples(len(changed))} that differ between {a.path} and {b.path}, the first with id {changed[0]}",
            remedy="Evaluate both models on the same data with the same preprocessing.",
        )
    return np.array(ids, dtype=np.int64)


def _hashes(run: Run) -> dict[int, str]:
    table = run.rows().filter(is_evidence(run.rows(), Evidence.CLEAN))
    return dict(zip(table["sample_id"].to_pylist(), table["x_sha256"].to_pylist(), strict=True))


def _name(run: Run) -> str:
    model = run.identity.model.name
    return f"{model} ({run.path})" if model else str(run.path)


def _notes(a: Run, b: Run) -> tuple[str, ...]:
    fields = differences(a.identity.raw, b.identity.raw)
    groups = sorted({name.split(".")[0] for name in fields} - {"data"})
    notes = [f"The evaluations differ in: {', '.join(groups)}."] if groups else []
    doubted = [side for side, run in (("A", a), ("B", b)) if run.verdict.level != "reliable"]
    if doubted:
        which = " and ".join(doubted)
        notes.append(
            f"The verdict on {which} is not reliable: the true accuracy may be lower, and so may differ from this."
        )
    notes += [f"{side} is unfinished." for side, run in (("A", a), ("B", b)) if not run.finished]
    return tuple(notes)
