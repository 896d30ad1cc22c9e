"""`APGDAttack` and `APGDAttack_targeted` in the module of AutoAttack."""

from brinell.compat.autoattack.single_attacks import APGDAttack, APGDAttack_targeted

__all__ = ["APGDAttack", "APGDAttack_targeted"]
