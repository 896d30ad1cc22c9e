"""One method per file; each is frozen numbers and two pure functions (see `brinell.core.attack`)."""

from brinell.attacks.alternating import Alternating
from brinell.attacks.apgd import APGD
from brinell.attacks.fab import FAB
from brinell.attacks.fgsm import FGSM
from brinell.attacks.joint import Joint
from brinell.attacks.matching import Matching
from brinell.attacks.pgd import PGD
from brinell.attacks.pursuit import Pursuit
from brinell.attacks.random_search import RandomSearch
from brinell.attacks.selective import SelectivePGD
from brinell.attacks.square import Square

__all__ = [
    "APGD",
    "FAB",
    "FGSM",
    "PGD",
    "Alternating",
    "Joint",
    "Matching",
    "Pursuit",
    "RandomSearch",
    "SelectivePGD",
    "Square",
]
