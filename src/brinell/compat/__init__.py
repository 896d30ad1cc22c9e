"""Replacements for AutoAttack (`autoattack`) and RobustBench (`robustbench`): a script changes only an import."""

from brinell.compat.autoattack import AutoAttack
from brinell.compat.robustbench import benchmark, load_model

__all__ = ["AutoAttack", "benchmark", "load_model"]
