"""Alias of `brinell.defences`, kept for scripts of the first version."""

from brinell.defences import *  # noqa: F403
from brinell.defences import __all__ as __all__
