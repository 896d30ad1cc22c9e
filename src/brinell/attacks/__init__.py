"""One method per file; each is frozen numbers and two pure functions (see `brinell.core.attack`)."""

from brinell.attacks.alma import ALMA
from brinell.attacks.alternating import Alternating
from brinell.attacks.apgd import APGD
from brinell.attacks.bisect import Bisect
from brinell.attacks.cw import CW
from brinell.attacks.ddn import DDN
from brinell.attacks.deepfool import DeepFool
from brinell.attacks.descend import Descend
from brinell.attacks.ead import EAD
from brinell.attacks.fab import FAB
from brinell.attacks.fgsm import FGSM
from brinell.attacks.fmn import FMN
from brinell.attacks.hop_skip_jump import HopSkipJump
from brinell.attacks.joint import Joint
from brinell.attacks.matching import Matching
from brinell.attacks.pdpgd import PDGD, PDPGD
from brinell.attacks.pgd import PGD
from brinell.attacks.pursuit import Pursuit
from brinell.attacks.random_search import RandomSearch
from brinell.attacks.refine import Refine
from brinell.attacks.selective import SelectivePGD
from brinell.attacks.square import Square

__all__ = [
    "ALMA",
    "APGD",
    "CW",
    "DDN",
    "EAD",
    "FAB",
    "FGSM",
    "FMN",
    "PDGD",
    "PDPGD",
    "PGD",
    "Alternating",
    "Bisect",
    "DeepFool",
    "Descend",
    "HopSkipJump",
    "Joint",
    "Matching",
    "Pursuit",
    "RandomSearch",
    "Refine",
    "SelectivePGD",
    "Square",
]
