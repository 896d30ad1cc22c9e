"""Smallest distances, robustness curves made of them, and how far apart the classes of a data set are."""

from brinell.curves.crossings import Crossing, Crossings, Range, Transfer, crossings, transfer
from brinell.curves.curve import Agreement, Curve, Slope
from brinell.curves.interclass import ClassDistances, Nearest, distances
from brinell.curves.measure import curve

__all__ = [
    "Agreement",
    "ClassDistances",
    "Crossing",
    "Crossings",
    "Curve",
    "Nearest",
    "Range",
    "Slope",
    "Transfer",
    "crossings",
    "curve",
    "distances",
    "transfer",
]
