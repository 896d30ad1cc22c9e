"""Randomised models: how much the accuracies vary between the judging passes, which decide what is broken."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.results.format.schema import CLEAN, Evidence, is_evidence
from brinell.results.row_queries import ids_of, samples

if TYPE_CHECKING:
    from brinell.results.run import Run


@dataclass(frozen=True)
class RepeatedAccuracy:
    """Mean and standard deviation of an accuracy over several passes on n samples.

    >>> print(RepeatedAccuracy(0.412, 0.0083, passes=5, n=1000))
    41.2 % ± 0.8 over 5 passes, n = 1,000
    """

    mean: float
    deviation: float
    passes: int
    n: int

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} % ± {100 * self.deviation:.1f} over {self.passes} passes, n = {self.n:,}"


@dataclass(frozen=True)
class Repeats:
    """Clean and robust accuracy of a randomised model, each as mean and standard deviation over the judging passes.

    >>> print(Repeats(RepeatedAccuracy(0.9, 0.01, 5, 100), RepeatedAccuracy(0.4, 0.02, 5, 100)))
    clean 90.0 % ± 1.0, robust 40.0 % ± 2.0 over 5 passes, n = 100
    """

    clean: RepeatedAccuracy
    robust: RepeatedAccuracy

    def __str__(self) -> str:
        clean = f"{100 * self.clean.mean:.1f} % ± {100 * self.clean.deviation:.1f}"
        return f"clean {clean}, robust {self.robust}"


def repeated(run: "Run", attacks: Sequence[str] | None = None) -> Repeats | None:
    """Return clean and robust accuracy over the judging passes; None if some sample has no judging passes.

    With `attacks`, only the rows of these attacks and the clean rows count.

    Method: one row, clean or attack, represents each sample: the row whose point fooled the most passes (counted in
    separate selection passes, if these are stored), in a tie the first such row. The accuracy of a pass is the share of
    samples whose point did not fool this pass. An attack row is left out if its point fooled most passes but lies
    outside the threat (not `broken`). The deviation is the standard deviation over the passes (divisor: passes - 1).
    Reference: Croce & Hein 2020, Table 2.

    >>> from brinell.results import Run
    >>> repeated(Run.open("tests/results/golden_run_v1")) is None
    True
    """
    table = run.numbers()
    if attacks is not None:
        table = table.filter(pc.is_in(table["attack"], pa.array([CLEAN, *attacks], pa.string())))
    table = table.filter(pc.is_valid(table["judged"]))
    most = np.array([2 * sum(judged) > len(judged) for judged in table["judged"].to_pylist()], dtype=bool)
    broken = np.asarray(table["broken"], dtype=bool)
    table = table.filter(pa.array(is_evidence(table, Evidence.CLEAN) | broken | ~most))
    judged = table["judged"].to_pylist()
    if len({len(passes) for passes in judged}) != 1 or len(samples(table)) < len(samples(run.numbers())):
        return None
    fooled, ids = np.array(judged, dtype=bool), ids_of(table)
    # Earlier passes choose the row, if there are any: selection needs its own draws.
    chosen = zip(table["chosen"].to_pylist(), fooled.sum(1).tolist(), strict=True)
    votes = np.array([total if earlier is None else earlier for earlier, total in chosen], dtype=np.int64)
    # The sort is stable: rows are in the order of the plan, the clean one first.
    order = np.lexsort((-votes, ids))
    _, first = np.unique(ids[order], return_index=True)
    return Repeats(spread(fooled[is_evidence(table, Evidence.CLEAN)]), spread(fooled[order[first]]))


def spread(fooled: npt.NDArray[np.bool_]) -> RepeatedAccuracy:
    """Return mean and deviation of the accuracy over passes; `fooled` has a row per sample and a column per pass.

    >>> print(spread(np.array([[True, False], [False, False]])))
    75.0 % ± 35.4 over 2 passes, n = 2
    """
    accuracies = 1 - fooled.mean(0)
    deviation = float(accuracies.std(ddof=1)) if len(accuracies) > 1 else math.nan
    return RepeatedAccuracy(float(accuracies.mean()), deviation, len(accuracies), len(fooled))
