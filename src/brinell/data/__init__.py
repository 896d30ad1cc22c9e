"""Data sets by name, and corruptions of their images."""

from brinell.data.corruptions import CORRUPTIONS, corrupt, corrupted
from brinell.data.load import load

__all__ = ["CORRUPTIONS", "corrupt", "corrupted", "load"]
