"""Attacks: one method per file, each a frozen dataclass of hyper-parameters with two pure functions, `init` and `step`.

`gradient/`: attacks of fixed radius that follow a gradient. `minimum_norm/`: attacks that minimise the distance.
`black_box/`: attacks without gradients. `detector/`: attacks on a classifier and its detector. `search/`: wrappers that
search over the radius, refine a distance, choose starts, shrink the ball or round points. `pursuit`: the attack of
the plan `fast`.
`catalogue`: the named plans. In every file `s` is the state, `a` the response of the model (the answer), `p` the batch
and `ball` its threat. Attacks never call the model: the engine queries it at `s.x` and passes the response to `step`.
`_common` and `_parameters` hold what attacks share. `brinell.testing.check_attack` tests any attack against
`brinell.core.attack`.
"""

from brinell.attacks.black_box import HopSkipJump, RandomSearch, Square
from brinell.attacks.detector import Alternating, Joint, Matching, SelectivePGD
from brinell.attacks.gradient import ACG, APGD, DIFGSM, FGSM, MIFGSM, PGD, TIFGSM, MomentumPGD
from brinell.attacks.minimum_norm import ALMA, CW, DDN, EAD, FAB, FMN, PDGD, PDPGD, DeepFool, SigmaZero, SuperDeepFool
from brinell.attacks.pursuit import Pursuit
from brinell.attacks.search import Bisect, Descend, OnGrid, PooledStarts, Refine, SmallerBall, WarmDescend

__all__ = [
    "ACG", "ALMA", "APGD", "CW", "DDN", "DIFGSM", "EAD", "FAB", "FGSM", "FMN", "MIFGSM", "PDGD", "PDPGD", "PGD",
    "TIFGSM", "Alternating", "Bisect",
    "DeepFool", "Descend", "HopSkipJump", "Joint", "Matching", "MomentumPGD", "OnGrid", "PooledStarts", "Pursuit",
    "RandomSearch",
    "Refine", "SelectivePGD", "SigmaZero", "SmallerBall", "Square", "SuperDeepFool", "WarmDescend",
]  # fmt: skip
