"""One method per file; each is frozen numbers and two pure functions (see `brinell.core.attack`)."""

from brinell.attacks.apgd import APGD
from brinell.attacks.fab import FAB
from brinell.attacks.fgsm import FGSM
from brinell.attacks.pgd import PGD
from brinell.attacks.pursuit import Pursuit
from brinell.attacks.random_search import RandomSearch
from brinell.attacks.square import Square

__all__ = ["APGD", "FAB", "FGSM", "PGD", "Pursuit", "RandomSearch", "Square"]
