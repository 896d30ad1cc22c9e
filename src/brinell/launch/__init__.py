"""Every GPU of a machine, and many machines: where `brinell.evaluate(..., launch=...)` does its work."""

from brinell.launch.ray import Ray

__all__ = ["Ray"]
