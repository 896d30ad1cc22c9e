"""Compute from rows which samples broke, under which attack, and at what cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.errors import RunError
from brinell.results.format.schema import CLEAN, Evidence, counted, is_evidence

Ids = npt.NDArray[np.int64]

# Columns that may differ between two computations of the same outcome: where and how fast it was computed.
INCIDENTAL = ("seconds", "device", "adv_shard", "adv_row")


@dataclass(frozen=True)
class Cost:
    """The cost of some rows: forward passes, backward passes and seconds of compute, in total and per sample.

    >>> Cost(forwards=30, backwards=20, seconds=1.0, samples=10).forwards_per_sample
    3.0
    """

    forwards: int
    backwards: int
    seconds: float
    samples: int

    @property
    def forwards_per_sample(self) -> float:
        """Mean number of forward passes per sample."""
        return self.forwards / max(self.samples, 1)

    @property
    def backwards_per_sample(self) -> float:
        """Mean number of backward passes per sample."""
        return self.backwards / max(self.samples, 1)

    @property
    def seconds_per_sample(self) -> float:
        """Mean seconds of compute per sample."""
        return self.seconds / max(self.samples, 1)


@dataclass(frozen=True)
class StageResult:
    """The result of one attack of the plan: how many samples it attacked, and how many it verifiably broke."""

    attack: str
    attacked: int
    broken: int


def ids_of(table: pa.Table) -> Ids:
    """Return the sample id of every row."""
    return np.asarray(table["sample_id"], dtype=np.int64)


def is_attack(table: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of one attack."""
    return np.asarray(pc.equal(table["attack"], name), dtype=bool)


def samples(table: pa.Table) -> Ids:
    """Return the sorted ids of all samples with a clean row (every sample of a complete Run has a clean row)."""
    return np.unique(ids_of(table)[is_evidence(table, Evidence.CLEAN)])


def chance_accuracy(table: pa.Table, classes: int | None) -> float | None:
    """Return the accuracy of guessing: the larger of 1 / `classes` and Cohen's expected agreement, None if unknown.

    Method: the expected agreement is the probability that a label and a prediction drawn independently agree. For a
    model that always predicts one class it is the share of that class. It is unknown if all labels are equal.
    `table` must have the labels and predictions of the clean rows.
    """
    _, first = np.unique(ids_of(table)[is_evidence(table, Evidence.CLEAN)], return_index=True)
    table = table.filter(pa.array(is_evidence(table, Evidence.CLEAN))).take(first)
    labels, predictions = (np.asarray(table[name], dtype=np.int64) for name in ("label", "clean_pred"))
    estimates = [1 / classes] if classes else []
    if len(np.unique(labels)) > 1:
        estimates.append(sum(float(np.mean(labels == c)) * float(np.mean(predictions == c)) for c in np.unique(labels)))
    return max(estimates, default=None)


def missing_classes(table: pa.Table, classes: int) -> int:
    """Return how many of the model's classes have no sample; `table` needs the labels of the clean rows."""
    labels = np.asarray(table["label"], dtype=np.int64)[is_evidence(table, Evidence.CLEAN)]
    return classes - len(np.unique(labels))


def survivors(table: pa.Table, attacks: Sequence[str] | None = None) -> Ids:
    """Return the sorted ids of samples without a broken, verified row; rows of attacks not in `attacks` are ignored."""
    fallen = counted(table)
    if attacks is not None:
        fallen &= np.asarray(pc.is_in(table["attack"], pa.array([CLEAN, *attacks], pa.string())), dtype=bool)
    return np.setdiff1d(samples(table), ids_of(table)[fallen])


def stage(table: pa.Table, attack: str) -> StageResult:
    """Return how many samples one attack attacked and broke."""
    rows = is_attack(table, attack)
    return StageResult(attack, int(rows.sum()), int((rows & counted(table)).sum()))


def cost(table: pa.Table, over: int | None = None) -> Cost:
    """Return the total cost of all rows; `over` is the divisor of means per sample (default: number of samples)."""
    forwards, backwards, seconds = (pc.sum(table[c]).as_py() or 0 for c in ("forwards", "backwards", "seconds"))
    return Cost(forwards, backwards, float(seconds), len(samples(table)) if over is None else over)


def arrange(table: pa.Table, attacks: Sequence[str]) -> pa.Table:
    """Return the rows sorted by sample and by the attack's position in the plan, the clean row first; drop repetitions.

    Two rows of the same sample and attack that differ in the outcome raise a RunError.
    """
    order, repeated = _order(table, attacks)
    if repeated.any():
        _refuse_conflicts(table.take(order), np.flatnonzero(repeated))
        order = order[np.concatenate([[True], ~repeated])]
    return table.take(order)


def _order(table: pa.Table, attacks: Sequence[str]) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Return the indices that sort the rows, and whether each sorted row after the first repeats the previous row."""
    known = list(dict.fromkeys([CLEAN, *attacks]))
    others = sorted(set(pc.unique(table["attack"]).to_pylist()) - set(known))
    rank = np.asarray(pc.index_in(table["attack"], pa.array([*known, *others], pa.string())), dtype=np.int64)
    ids = ids_of(table)
    order = np.lexsort((rank, ids))
    return order, (np.diff(ids[order]) == 0) & (np.diff(rank[order]) == 0)


def has_repetitions(table: pa.Table) -> bool:
    """Return whether some sample has more than one row of the same attack."""
    return bool(_order(table, ())[1].any())


def _refuse_conflicts(table: pa.Table, repeated: Ids) -> None:
    fields, where = set[str](), set[str]()
    for i in repeated.tolist():
        first, second = table.slice(i, 2).to_pylist()
        # With repr, nan equals nan.
        differing = {name for name in first if name not in INCIDENTAL and repr(first[name]) != repr(second[name])}
        fields |= differing
        where |= {f"{first['sample_id']}/{first['attack']}"} if differing else set()
    if where:
        shown = sorted(where)
        raise RunError(
            expected="one outcome per sample and attack",
            got=f"two outcomes that differ in {', '.join(sorted(fields))} for {len(shown)} (sample/attack): "
            f"{', '.join(shown[:5])}{', ...' * (len(shown) > 5)}",
            remedy="Use only Runs or shards of one evaluation, in which an id always means the same sample.",
        )
