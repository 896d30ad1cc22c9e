"""One method per file; each is frozen numbers and two pure functions (see `brinell.core.attack`)."""

from brinell.attacks.apgd import APGD
from brinell.attacks.fgsm import FGSM
from brinell.attacks.pgd import PGD

__all__ = ["APGD", "FGSM", "PGD"]
