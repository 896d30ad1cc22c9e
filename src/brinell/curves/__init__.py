"""Robustness curves: the share of samples that break within each radius.

`measure` attacks a model without a radius and collects the smallest distance of every sample. `curve` holds these
distances in the class `Curve`, which has values with intervals, areas, slopes and files. `crossings` finds where two
curves cross, `optimality` how near an attack comes to the best known distances. `across_norms` measures adversarial
examples of one norm in another norm, and says whether the order of models in one norm holds in another.
`class_distances` measures how far the classes of a data set are apart, with the lower bounds in `bounds`. `plot` draws
curves with matplotlib. `brinell.curve`, `brinell.distances` and their commands call this package.
"""

from brinell.curves.across_norms import (
    NormTransfer,
    OrderAcrossNorms,
    measured_in,
    order_across_norms,
    transfer_across_norms,
)
from brinell.curves.class_distances import ClassDistances, Nearest, distances
from brinell.curves.crossings import CertainRange, Crossing, Crossings, crossings
from brinell.curves.curve import Agreement, Curve, Slope
from brinell.curves.measure import curve

__all__ = [
    "Agreement",
    "CertainRange",
    "ClassDistances",
    "Crossing",
    "Crossings",
    "Curve",
    "Nearest",
    "NormTransfer",
    "OrderAcrossNorms",
    "Slope",
    "crossings",
    "curve",
    "distances",
    "measured_in",
    "order_across_norms",
    "transfer_across_norms",
]
