"""Compare the minimum-margin attack under seven rescalings of the logits."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from brinell.arguments import DataLike, ModelLike
from brinell.attacks import APGD, PGD
from brinell.attacks.catalogue import MM_PAPER, MM_STEP, by_norm, rescaled
from brinell.core.execution import ComputeOptions, Execution
from brinell.core.plan import DEFAULT_TARGETS, Plan
from brinell.core.threat import Threat
from brinell.errors import one_of
from brinell.evaluation.evaluate import evaluate
from brinell.results import CLEAN, Proportion, Run, counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Gao et al. 2022: 20 fixed steps in Table 2, 100 adaptive steps in Table 4.
FIXED_STEPS, ADAPTIVE_STEPS = 20, 100
STEPS = ("fixed", "adaptive")


@dataclass(frozen=True)
class Rescaling:
    """A rescaling of the margin: its id and name in Gao et al. 2022, the name of its loss in Brinell, its formula."""

    id: str
    name: str
    loss: str
    formula: str


RESCALINGS = (
    Rescaling("A", "Natural logits", "minimum-margin", "−(z_y − z_t)"),
    Rescaling("B1", "Softmax", "mm-softmax", "−(e^z_y − e^z_t) / Σ e^z_i"),
    Rescaling("B2", "Max", "mm-max", "−(z_y − z_t) / z_y"),
    Rescaling("B3", "Sum", "mm-sum", "−(z_y − z_t) / (z_y + z_t)"),
    Rescaling("B4", "Min-Max", "mm-min-max", "−(z_y − z_t) / (z_π1 − z_πK)"),
    Rescaling("B5", "DLR", "dlr-targeted", "−(z_y − z_t) / (z_π1 − (z_π3 + z_π4) / 2)"),
    Rescaling("B6", "Sigmoid", "mm-sigmoid", "−(σ(z_y) − σ(z_t))"),
)


def places(sizes: Sequence[int]) -> list[str]:
    """Return the rank of each count, "1" for the largest; equal counts share a rank, marked with "=".

    >>> places([5379, 5377, 5374, 5374, 5376])
    ['1', '2', '=4', '=4', '3']
    """
    above = [sum(other > size for other in sizes) for size in sizes]
    return [f"{'=' * (above.count(k) > 1)}{k + 1}" for k in above]


@dataclass(frozen=True)
class Successes:
    """The result of one rescaling: the share of samples that it breaks, misclassified samples included.

    `place` is its rank. `difference` is its number of broken samples minus the number of rescaling A (natural logits).
    `only_here` are the samples that this rescaling breaks and A does not; `only_natural` are those that only A breaks.
    """

    rescaling: Rescaling
    share: Proportion
    place: str
    difference: int
    only_here: frozenset[int]
    only_natural: frozenset[int]

    @property
    def size(self) -> int:
        return self.share.k

    def to_json(self) -> dict[str, Any]:
        r, p = self.rescaling, self.share
        return {
            "id": r.id, "name": r.name, "loss": r.loss, "formula": r.formula, "size": self.size, "n": p.n,
            "share": {"value": p.value, "low": p.low, "high": p.high}, "ranking": self.place, "diff": self.difference,
            "only_here": sorted(self.only_here), "only_natural": sorted(self.only_natural),
        }  # fmt: skip


@dataclass(frozen=True)
class RescalingTable:
    """The results of seven rescalings on the same samples; `union` is the share of samples that at least one breaks."""

    steps: str
    lines: tuple[Successes, ...]
    clean: Proportion
    union: Proportion
    run: Run

    @property
    def sizes(self) -> dict[str, int]:
        return {line.rescaling.loss: line.size for line in self.lines}

    def to_json(self) -> dict[str, Any]:
        cost = self.run.cost
        return {
            "steps": self.steps, "n": self.clean.n, "misclassified": self.clean.n - self.clean.k,
            "union": self.union.k, "lines": [line.to_json() for line in self.lines],
            "forwards": cost.forwards, "backwards": cost.backwards, "unverified": self.run.unverified.num_rows,
            "notes": self.run.notes, "path": str(self.run.path),
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{s.rescaling.id} {s.rescaling.name}: {s.size} of {s.share.n}, rank {s.place}" for s in self.lines]
        return "\n".join([f"{self.steps} steps; samples broken by any: {self.union.k}", *lines])


def successes(broken: Sequence[frozenset[int]], n: int) -> tuple[Successes, ...]:
    """Return one result per rescaling; `broken[i]` has the ids of the samples, of n, that RESCALINGS[i] breaks."""
    natural = broken[0]
    order = places([len(b) for b in broken])
    return tuple(
        Successes(r, Proportion(len(b), n), place, len(b) - len(natural), b - natural, natural - b)
        for r, b, place in zip(RESCALINGS, broken, order, strict=True)
    )


def rescaling_plan(steps: str = "fixed", targets: int = DEFAULT_TARGETS) -> Plan:
    """Return a plan with one stage per rescaling of the logits; all stages use the same random starting points.

    >>> import brinell
    >>> [s.name for s in rescaling_plan("adaptive").stages_for(brinell.Linf(0.1))][:2]
    ['minimum-margin', 'mm-softmax']
    """
    one_of("steps", steps, STEPS)
    dense: APGD | PGD = APGD(ADAPTIVE_STEPS) if steps == "adaptive" else PGD(FIXED_STEPS, MM_STEP)
    sparse = replace(dense, larger_eps=True) if isinstance(dense, APGD) else dense
    text = "Minimum-Margin under seven rescalings of the logits"
    return Plan(f"rescalings-{steps}", by_norm(rescaled(dense, targets), rescaled(sparse, targets)), text, MM_PAPER)


def rescalings(
    classifier: ModelLike, problem: DataLike, threat: Threat,
    *, steps: str = "fixed", targets: int = DEFAULT_TARGETS, out: str | os.PathLike[str] | None = None,
    resume: bool = False, progress: bool | None = None, **options: "Unpack[ComputeOptions]",
) -> RescalingTable:  # fmt: skip
    """Return which samples the minimum-margin attack breaks under each of seven rescalings of the logits.

    Method: `steps` "fixed" is 20 steps of eps/10 (Table 2), "adaptive" 100 steps of Auto-PGD (Table 4), towards the
    `targets` likeliest wrong classes in turn. Every rescaling attacks every correctly classified sample from the same
    starting points. As in Gao et al., every rescaling also counts the misclassified samples as broken. The Run is
    stored in `out`. `options` are `seed`, `slots` and `device`. Cost: seven times the plan mm9-f20 (fixed) or mm+
    (adaptive). Reference: Gao et al. 2022, sec. 3.1 and appendix C.

    >>> import brinell
    >>> table = rescalings("demo", brinell.data.load("demo", 16), brinell.Linf(0.1), targets=1, progress=False)
    >>> table.lines[0].place, table.lines[0].share.n, len(table.lines)
    ('=1', 16, 7)
    """
    run = evaluate(
        classifier, problem, threat, rescaling_plan(steps, targets), out=out, resume=resume,
        execution=Execution.from_options(options, ComputeOptions), progress=progress, individual=True,
    )  # fmt: skip
    return from_run(run, steps)


def from_run(run: Run, steps: str) -> RescalingTable:
    """Return the results in a finished Run of the plan `rescaling_plan(steps)`."""
    rows = run.rows()
    ids, names, broken_rows = (np.asarray(v) for v in (rows["sample_id"], rows["attack"], counted(rows)))
    wrong = frozenset(ids[(names == CLEAN) & broken_rows].tolist())
    broken = [wrong | frozenset(ids[(names == r.loss) & broken_rows].tolist()) for r in RESCALINGS]
    clean = run.clean_accuracy
    union = Proportion(len(frozenset().union(*broken)), clean.n)
    return RescalingTable(steps, successes(broken, clean.n), clean, union, run)
