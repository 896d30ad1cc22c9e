"""Every GPU of a machine, and many machines: where `brinell.evaluate(..., launch=...)` does its work."""

from brinell.distributed.ray import Ray
from brinell.distributed.simulation import Estimate, World, estimate

__all__ = ["Estimate", "Ray", "World", "estimate"]
