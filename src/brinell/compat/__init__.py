"""Replacements for other libraries: a script changes only its imports.

`autoattack` and `robustbench` have the names of these packages; `foolbox` and `torchattacks` have their models, attacks
and criteria. What a library has and Brinell has not raises an error that names what to use.
`functions` and `missing` hold what all share.
"""

from brinell.compat.autoattack import AutoAttack
from brinell.compat.robustbench import benchmark, load_model

__all__ = ["AutoAttack", "benchmark", "load_model"]
