"""A table or figure of a paper: what it shows, what it needs, what the paper says, and the function that runs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brinell.results.analyses import AnalysisReport, Table

if TYPE_CHECKING:
    from brinell.reproduce.setup import Setup


@dataclass(frozen=True)
class Exhibit:
    """One table or figure of a paper.

    `needs` says which data and weights the paper's own numbers need, `cost` how much time or how many passes a run
    takes. `published` holds the paper's numbers. `measure` runs the exhibit in the given setup and returns tables and
    figures in the paper's layout; None means that the exhibit cannot be run, and `missing` says which file or feature
    is missing. `differences` explains why our numbers and the paper's numbers may differ.

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

    @property
    def paper(self) -> str:
        """The short name of the paper: the part of the name before the slash."""
        return self.name.partition("/")[0]
