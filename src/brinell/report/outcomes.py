"""What became of every sample of a Run, as columns."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.results import Evidence, Run, counted, is_evidence
from brinell.results.row_queries import ids_of, is_attack

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SampleOutcomes:
    """One entry per sample, sorted by id.

    `stage` is the first attack that broke it, its place in the plan from 0, or -1; `row` the place in the Run's rows of
    the adversarial that is stored for it, the nearest, or -1; `distance` that one's; `reached` the largest margin that
    any attack saw inside the threat; where there is none, they are nan.
    """

    ids: Ints
    label: Ints
    clean_margin: Floats
    right: Marks
    robust: Marks
    stage: Ints
    row: Ints
    distance: Floats
    reached: Floats
    forwards: Ints

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def fell(self) -> Marks:
        """Classified correctly, and broken by an attack."""
        return self.right & ~self.robust


def sample_outcomes(run: Run) -> SampleOutcomes:
    """The samples of a Run.

    >>> found = sample_outcomes(Run.open("tests/results/golden_run_v1"))
    >>> len(found), int(found.robust.sum())
    (6, 2)
    """
    table = run.rows()
    clean, fallen = is_evidence(table, Evidence.CLEAN), counted(table)
    first = table.filter(clean)
    ids = ids_of(first)
    at = np.searchsorted(ids, ids_of(table))
    names = run.attacks
    stage = np.full(len(ids), -1, np.int64)
    for i in reversed(range(len(names))):
        stage[at[is_attack(table, names[i]) & fallen]] = i
    distance = _numbers(table["distance"])
    broken = np.flatnonzero(fallen & ~clean)
    # The order of Run.adversarials: the nearest, and of equals the earlier attack.
    order = broken[np.lexsort((np.where(np.isnan(distance[broken]), np.inf, distance[broken]), at[broken]))]
    whose, where = np.unique(at[order], return_index=True)
    row = np.full(len(ids), -1, np.int64)
    row[whose] = order[where]
    reached = np.full(len(ids), np.nan)
    margin = _numbers(table["adv_margin"])
    # A margin above 0 that broke nothing was seen outside the threat, as by attacks that come from there.
    inside = np.flatnonzero(~clean & (fallen | (margin <= 0)))
    np.fmax.at(reached, at[inside], margin[inside])
    forwards = np.zeros(len(ids), np.int64)
    np.add.at(forwards, at, np.asarray(table["forwards"], dtype=np.int64))
    return SampleOutcomes(
        ids=ids,
        label=np.asarray(first["label"], dtype=np.int64),
        clean_margin=_numbers(first["clean_margin"]),
        right=~counted(first),
        robust=np.isin(ids, run.survivors()),
        stage=stage,
        row=row,
        distance=np.where(row >= 0, distance[row] if len(distance) else np.nan, np.nan),
        reached=reached,
        forwards=forwards,
    )


def _numbers(column: object) -> Floats:
    return np.asarray(pc.cast(column, "float64"), dtype=np.float64)
