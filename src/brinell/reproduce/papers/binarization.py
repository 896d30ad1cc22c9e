"""Tables and figures of the paper on the binarization test (Zimmermann et al. 2022)."""

from brinell.reproduce.exhibit import Exhibit

EXHIBITS: tuple[Exhibit, ...] = ()
