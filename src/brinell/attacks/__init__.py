"""One method per file; each is frozen numbers and two pure functions (see `brinell.core.attack`)."""

from brinell.attacks.black_box.hop_skip_jump import HopSkipJump
from brinell.attacks.black_box.random_search import RandomSearch
from brinell.attacks.black_box.square import Square
from brinell.attacks.detector.alternating import Alternating
from brinell.attacks.detector.joint import Joint
from brinell.attacks.detector.matching import Matching
from brinell.attacks.detector.selective import SelectivePGD
from brinell.attacks.gradient.apgd import APGD
from brinell.attacks.gradient.fgsm import FGSM
from brinell.attacks.gradient.pgd import PGD
from brinell.attacks.minimum_norm.alma import ALMA
from brinell.attacks.minimum_norm.cw import CW
from brinell.attacks.minimum_norm.ddn import DDN
from brinell.attacks.minimum_norm.deepfool import DeepFool
from brinell.attacks.minimum_norm.ead import EAD
from brinell.attacks.minimum_norm.fab import FAB
from brinell.attacks.minimum_norm.fmn import FMN
from brinell.attacks.minimum_norm.pdpgd import PDGD, PDPGD
from brinell.attacks.pursuit import Pursuit
from brinell.attacks.search.bisect import Bisect
from brinell.attacks.search.descend import Descend
from brinell.attacks.search.refine import Refine

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
