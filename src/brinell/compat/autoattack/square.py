"""`SquareAttack` in the module of AutoAttack."""

from brinell.compat.autoattack.single_attacks import SquareAttack

__all__ = ["SquareAttack"]
