"""`FABAttack_PT` in the module of AutoAttack."""

from brinell.compat.autoattack.single_attacks import FABAttack_PT

__all__ = ["FABAttack_PT"]
