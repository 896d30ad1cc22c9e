"""The same evaluation with several seeds: mean, interval and standard deviation of the robust accuracy."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from brinell.results import row_queries
from brinell.results.analyses import AnalysisReport, Cell, Measure, Table
from brinell.results.statistics import Interval, Proportion, wilson
from brinell.results.summary import setting

if TYPE_CHECKING:
    from brinell.results.run import Run


@dataclass(frozen=True)
class SeedRuns:
    """Runs of one evaluation that differ in the seed only.

    `worst` counts a sample as robust only if the sample survives with every seed.
    Reference: Croce et al. 2021, appendix C.
    """

    runs: "tuple[Run, ...]"

    @property
    def accuracies(self) -> tuple[float, ...]:
        """The robust accuracy with each seed."""
        return tuple(run.robust_accuracy.value for run in self.runs)

    @property
    def mean(self) -> float:
        """The mean of the robust accuracies."""
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """The sample standard deviation of the robust accuracies (divisor: seeds - 1); NaN with one seed."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.runs) > 1 else math.nan

    @property
    def worst(self) -> Proportion:
        """The share of samples that no Run broke."""
        survivors = [set(run.survivors().tolist()) for run in self.runs]
        return Proportion(len(set.intersection(*survivors)), len(row_queries.samples(self.runs[0].numbers())))

    def __str__(self) -> str:
        p, low, high = self.robust_accuracy, 100 * min(self.accuracies), 100 * max(self.accuracies)
        text = f"Robust accuracy {100 * p.value:.2f} % [{100 * p.low:.1f}, {100 * p.high:.1f}], n = {p.n:,} samples"
        if len(self.runs) == 1:
            return f"{text}, with one seed"
        spread = "the same with every seed"
        if low < high:
            spread = f"from {low:.2f} to {high:.2f} % by seed, standard deviation {100 * self.deviation:.2f} points"
        every = f"{self.worst} if a sample must withstand every seed"
        return f"{text}, mean over {len(self.runs)} seeds ({spread}); {every}"

    @property
    def robust_accuracy(self) -> Interval:
        """The mean robust accuracy with its 95 % interval for the n samples, which are the same with every seed.

        Wilson's interval of the mean number of robust samples among n. Averaging a sample's outcomes over seeds only
        lowers their variance, so the interval is rather too wide than too narrow.
        """
        n = self.runs[0].robust_accuracy.n
        k = sum(run.robust_accuracy.k for run in self.runs) / len(self.runs)
        return Interval(self.mean, *wilson(k, n), n)

    @property
    def setting(self) -> str:
        """Threat, plan and data of the Runs."""
        return setting(self.runs[0])

    def measures(self) -> tuple[Measure, ...]:
        """Return the deviation over seeds (not with one seed) and the worst case, for a table of many models."""
        every = Measure.percent("robust under every seed, %", self.worst)
        if len(self.runs) == 1:
            return (every,)
        return Measure("standard deviation over seeds, points", 100 * self.deviation), every

    def findings(self) -> AnalysisReport:
        """Return a report: a table with one row per seed."""
        rows: list[tuple[Cell, ...]] = []
        for run in self.runs:
            p, cost = run.robust_accuracy, run.cost
            interval = f"[{100 * p.low:.1f}, {100 * p.high:.1f}]"
            rows.append((run.identity.seed, round(100 * p.value, 2), interval, p.n, round(cost.seconds, 1)))
        columns = ("seed", "robust accuracy, %", "95 % interval", "n", "seconds")
        first = self.runs[0].identity
        title = f"{first.model.name}, plan {first.plan.name}, {len(rows)} seed{'s' * (len(rows) != 1)}"
        return AnalysisReport("seeds", "Several seeds", f"{self}.", (Table(title, columns, tuple(rows)),))
