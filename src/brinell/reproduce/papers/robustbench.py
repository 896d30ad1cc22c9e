"""Tables and figures of the RobustBench paper (Croce et al. 2021)."""

from brinell.reproduce.exhibit import Exhibit

EXHIBITS: tuple[Exhibit, ...] = ()
