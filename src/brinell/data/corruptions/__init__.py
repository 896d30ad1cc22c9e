"""Common corruptions of images: noise, blur, weather and digital ones, at five severities."""

from brinell.data.corruptions.problem import corrupted
from brinell.data.corruptions.registry import COMMON, CORRUPTIONS, EXTRA, SEVERITIES, Corruption, corrupt

__all__ = ["COMMON", "CORRUPTIONS", "EXTRA", "SEVERITIES", "Corruption", "corrupt", "corrupted"]
