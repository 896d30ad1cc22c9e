"""Tables and figures of the paper on robustness curves (Risse et al. 2021)."""

from brinell.reproduce.exhibit import Exhibit

EXHIBITS: tuple[Exhibit, ...] = ()
