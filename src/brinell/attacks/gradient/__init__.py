"""Attacks that follow the gradient of a loss inside a ball of fixed radius.

`fgsm`: one step of full length. `pgd`: steps of fixed length, optionally with momentum. `apgd`:
Auto-PGD, whose step size adapts to its progress; in norms with sparse steps it uses the scheme in `apgd_l1`. `acg`: the
same with conjugate directions. `transfer`: iterated FGSM with momentum, diverse inputs and smoothed gradients, for
images that fool other models.
"""

from brinell.attacks.gradient.acg import ACG
from brinell.attacks.gradient.apgd import APGD
from brinell.attacks.gradient.fgsm import FGSM
from brinell.attacks.gradient.pgd import PGD, MomentumPGD
from brinell.attacks.gradient.transfer import DIFGSM, MIFGSM, TIFGSM

__all__ = ["ACG", "APGD", "DIFGSM", "FGSM", "MIFGSM", "PGD", "TIFGSM", "MomentumPGD"]
