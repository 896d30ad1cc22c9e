"""Call signatures of the tools Brinell replaces, so that a script changes one import."""

from brinell.compat.autoattack import AutoAttack
from brinell.compat.robustbench import benchmark, load_model

__all__ = ["AutoAttack", "benchmark", "load_model"]
