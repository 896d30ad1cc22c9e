"""Data sets by name."""

from brinell.data.load import load

__all__ = ["load"]
