"""Tables and figures of the AutoAttack paper (Croce & Hein 2020)."""

from brinell.reproduce.exhibit import Exhibit

EXHIBITS: tuple[Exhibit, ...] = ()
