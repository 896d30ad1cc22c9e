"""The outcome of every sample of a Run, as arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.results import Evidence, Run, counted, is_evidence
from brinell.results.row_queries import ids_of, is_attack

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SampleOutcomes:
    """The outcomes of a Run's samples: arrays with one entry per sample, sorted by id.

    `stage` is the position in the plan of the first attack that broke the sample, or -1. `row` is the index in
    `run.rows()` of the attack row that broke it at the smallest distance, or -1, and `distance` this distance.
    `largest_margin` is the largest margin that an attack reached inside the threat. Missing distances and margins are
    nan.
    """

    ids: Ints
    label: Ints
    clean_margin: Floats
    correct: Bools
    robust: Bools
    stage: Ints
    row: Ints
    distance: Floats
    largest_margin: Floats
    forwards: Ints

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def broken(self) -> Bools:
        """For each sample, whether it was classified correctly and then broken by an attack."""
        return self.correct & ~self.robust


def sample_outcomes(run: Run) -> SampleOutcomes:
    """Return the outcome of every sample of a Run.

    >>> outcomes = sample_outcomes(Run.open("tests/results/golden_run_v1"))
    >>> len(outcomes), int(outcomes.robust.sum())
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
    # As in Run.adversarials: the nearest, and among equals the earlier attack.
    order = broken[np.lexsort((np.where(np.isnan(distance[broken]), np.inf, distance[broken]), at[broken]))]
    whose, where = np.unique(at[order], return_index=True)
    row = np.full(len(ids), -1, np.int64)
    row[whose] = order[where]
    largest = np.full(len(ids), np.nan)
    margin = _numbers(table["adv_margin"])
    # A margin above 0 that broke nothing was reached outside the threat, where some attacks start.
    inside = np.flatnonzero(~clean & (fallen | (margin <= 0)))
    np.fmax.at(largest, at[inside], margin[inside])
    forwards = np.zeros(len(ids), np.int64)
    np.add.at(forwards, at, np.asarray(table["forwards"], dtype=np.int64))
    return SampleOutcomes(
        ids=ids,
        label=np.asarray(first["label"], dtype=np.int64),
        clean_margin=_numbers(first["clean_margin"]),
        correct=~counted(first),
        robust=np.isin(ids, run.survivors()),
        stage=stage,
        row=row,
        distance=np.where(row >= 0, distance[row] if len(distance) else np.nan, np.nan),
        largest_margin=largest,
        forwards=forwards,
    )


def _numbers(column: object) -> Floats:
    return np.asarray(pc.cast(column, "float64"), dtype=np.float64)
