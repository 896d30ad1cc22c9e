"""Alias of `brinell.distributed`, kept for scripts of the first version."""

from brinell.distributed import *  # noqa: F403
from brinell.distributed import __all__ as __all__
