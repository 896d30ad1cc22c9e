"""Call signatures of the tools Brinell replaces, so that a script changes one import."""

from brinell.compat.autoattack import AutoAttack

__all__ = ["AutoAttack"]
