"""Every GPU of a machine, and many machines: where `brinell.evaluate(..., launch=...)` does its work."""

from brinell.launch.ray import Ray
from brinell.launch.simulation import Estimate, World, estimate

__all__ = ["Estimate", "Ray", "World", "estimate"]
