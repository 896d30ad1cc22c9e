"""Attacks that look for the smallest perturbation at which a sample is misclassified.

`fmn` and `ddn` adapt a radius around the clean point; `deepfool`, `superdeepfool` and `fab` step to the linearised
decision boundary; `sigma_zero` descends on a smooth count of changed coordinates;
`cw` and `ead` weigh distance against margin with a constant that `_tradeoff` searches for; `alma` and `pdpgd` (PDGD and
PDPGD) adapt the weight of the margin as a multiplier or dual variable. The engine keeps the nearest adversarial point
of every run, so the attacks need not record it. `brinell.attacks.search` turns attacks of fixed radius into
minimum-norm attacks.
"""

from brinell.attacks.minimum_norm.alma import ALMA
from brinell.attacks.minimum_norm.cw import CW
from brinell.attacks.minimum_norm.ddn import DDN
from brinell.attacks.minimum_norm.deepfool import DeepFool
from brinell.attacks.minimum_norm.ead import EAD
from brinell.attacks.minimum_norm.fab import FAB
from brinell.attacks.minimum_norm.fmn import FMN
from brinell.attacks.minimum_norm.pdpgd import PDGD, PDPGD
from brinell.attacks.minimum_norm.sigma_zero import SigmaZero
from brinell.attacks.minimum_norm.superdeepfool import SuperDeepFool

__all__ = ["ALMA", "CW", "DDN", "EAD", "FAB", "FMN", "PDGD", "PDPGD", "DeepFool", "SigmaZero", "SuperDeepFool"]
