"""Data sets by name, files and folders of one's own, and corruptions of images."""

from brinell.data.check import Checked, check
from brinell.data.corruptions import CORRUPTIONS, corrupt, corrupted
from brinell.data.fetch import fetch, place
from brinell.data.images import PREPROCESSINGS, Preprocessing
from brinell.data.load import load
from brinell.data.sets import CORRUPTIONS_3D, SETS, Set

__all__ = [
    "CORRUPTIONS",
    "CORRUPTIONS_3D",
    "PREPROCESSINGS",
    "SETS",
    "Checked",
    "Preprocessing",
    "Set",
    "check",
    "corrupt",
    "corrupted",
    "fetch",
    "load",
    "place",
]
