"""A table or figure of a paper: what it shows, what it needs, what the paper says, and the function that runs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brinell.results.analyses import AnalysisReport, Table

if TYPE_CHECKING:
    from brinell.reproduce.setup import Setup

# Where the numbers of an exhibit come from; a fourth possibility is the name of the exhibit whose run it shows too.
MEASURED, RECORDS, CALCULATED = "measured", "records", "calculated"
# The options of most exhibits: one model, or several; data, threat, number of samples, seed and device.
ONE_MODEL = ("model", "data", "norm", "eps", "n", "seed", "device")
MODELS = ("models", *ONE_MODEL[1:])


@dataclass(frozen=True)
class Exhibit:
    """One table or figure of a paper.

    `needs` says which data and weights the paper's own numbers need, `cost` how much time or how many passes a run
    takes. `published` holds the paper's numbers. `measure` runs the exhibit in the given setup and returns tables and
    figures in the paper's layout; None means that the exhibit cannot be run, and `missing` says which file or feature
    is missing. `differences` explains why our numbers and the paper's numbers may differ. `source` says where the
    numbers come from: "measured" by attacks or other computations on networks and data, copied from stored "records",
    "calculated" from closed forms, or the name of the exhibit whose run this one shows in another form. `uses` names
    the options of `Setup` that change the result: "model" for one model, "models" for any number; others are refused.

    >>> Exhibit("mm/table-0", "Nothing", "Table 0", needs="nothing", cost="seconds").paper
    'mm'
    """

    name: str
    title: str
    place: str
    needs: str
    cost: str
    published: tuple[Table, ...] = ()
    measure: "Callable[[Setup], AnalysisReport] | None" = None
    missing: str = ""
    differences: str = ""
    source: str = MEASURED
    uses: tuple[str, ...] = MODELS

    @property
    def paper(self) -> str:
        """The short name of the paper: the part of the name before the slash."""
        return self.name.partition("/")[0]

    @property
    def origin(self) -> str:
        """The source in words.

        >>> Exhibit("mm/table-9", "Cost", "Table 9", needs="nothing", cost="none", source="mm/table-8").origin
        'same run as mm/table-8'
        """
        words = {MEASURED: "measured", RECORDS: "from stored records", CALCULATED: "calculated from closed forms"}
        return words.get(self.source, f"same run as {self.source}")
