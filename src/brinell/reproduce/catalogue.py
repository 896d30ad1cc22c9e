"""All exhibits (tables and figures of the papers) by name."""

from brinell.errors import InputError, did_you_mean
from brinell.reproduce.exhibit import Exhibit
from brinell.reproduce.papers import autoattack, binarization, curves, minimum_margin, robustbench

# The short name of each paper in the names of its exhibits.
PAPERS = {
    "aa": "AutoAttack (Croce & Hein 2020)",
    "robustbench": "RobustBench (Croce et al. 2021)",
    "mm": "Minimum-Margin attack (Gao et al. 2022)",
    "binarization": "Binarization test (Zimmermann et al. 2022)",
    "curves": "Robustness curves (Risse et al. 2021)",
}


def exhibits(paper: str | None = None) -> tuple[Exhibit, ...]:
    """Return the exhibits of all papers, or only of the paper with this short name, in the order of the papers.

    >>> exhibits("mm")[0].name
    'mm/figure-1'
    """
    modules = (autoattack, robustbench, minimum_margin, binarization, curves)
    return tuple(e for m in modules for e in m.EXHIBITS if paper in (None, e.paper))


def find(name: str) -> Exhibit:
    """Return the exhibit of this name; if there is none, raise an InputError with the closest names."""
    known = {e.name: e for e in exhibits()}
    if name not in known:
        raise InputError(
            expected="the name of a table or figure, such as mm/table-2",
            got=repr(name),
            remedy=did_you_mean(name, known, "brinell reproduce lists all names."),
        )
    return known[name]
