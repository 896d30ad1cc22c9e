"""Attacks that wrap other attacks and search for the smallest distance.

`bisect`: an attack of fixed radius, first in growing balls, then with bisection of the radius. `descend`: a
minimum-norm attack, then an attack of fixed radius in ever smaller balls below the distance found. `refine`: a
minimum-norm attack, then a bisection of the segment between the clean point and the nearest adversarial point.
"""

from brinell.attacks.search.bisect import Bisect
from brinell.attacks.search.descend import Descend
from brinell.attacks.search.refine import Refine

__all__ = ["Bisect", "Descend", "Refine"]
