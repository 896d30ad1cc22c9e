"""`AutoAttack` in the module of AutoAttack."""

from brinell.compat.autoattack import AutoAttack

__all__ = ["AutoAttack"]
