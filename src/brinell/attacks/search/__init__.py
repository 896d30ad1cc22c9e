"""Attacks that wrap other attacks: searches for the smallest distance, other starts, smaller balls, rounding to 8 bits.

`bisect`: an attack of fixed radius, first in growing balls, then with bisection of the radius. `descend`: a
minimum-norm attack, then an attack of fixed radius in ever smaller balls below the distance found, with or without a
start at the nearest point. `on_grid`: an attack of fixed radius whose points are rounded to 8 bits. `pooled`: an attack
that starts at perturbations which broke other samples. `refine`: a minimum-norm attack, then a bisection of the segment
between the clean point and the nearest adversarial point. `smaller`: an attack in a smaller ball.
"""

from brinell.attacks.search.bisect import Bisect
from brinell.attacks.search.descend import Descend, WarmDescend
from brinell.attacks.search.on_grid import OnGrid
from brinell.attacks.search.pooled import PooledStarts
from brinell.attacks.search.refine import Refine
from brinell.attacks.search.smaller import SmallerBall

__all__ = ["Bisect", "Descend", "OnGrid", "PooledStarts", "Refine", "SmallerBall", "WarmDescend"]
