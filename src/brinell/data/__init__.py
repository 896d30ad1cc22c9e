"""Data sets by name, the user's own files and folders, and common corruptions of images.

`load` makes a Problem from a name, a file or a folder. The `catalogue` lists the data sets known by name; `layouts`
says which files each one has on disk and reads them, with `array_formats` (CIFAR pickles, idx, .npy), `matlab` (SVHN)
and `image_folders` (pictures, decoded on demand); `labelled_images` has the layouts of GTSRB, Tiny-ImageNet,
CINIC-10, Describable Textures and HAR.
`local_files` reads the user's own .npz and .safetensors files.
`fetch` downloads published files into the cache; `check` compares their digests and counts with the published ones.
`demo` is the data shipped with the package; `corruptions` has the noise, blur, weather and digital corruptions of
Hendrycks & Dietterich.
"""

from brinell.data.catalogue import CORRUPTIONS_3D, SETS, DataSet
from brinell.data.check import CheckedSubset, check
from brinell.data.corruptions import CORRUPTIONS, corrupt, corrupted
from brinell.data.fetch import fetch, place
from brinell.data.image_folders import PREPROCESSINGS, Preprocessing
from brinell.data.load import load

__all__ = [
    "CORRUPTIONS",
    "CORRUPTIONS_3D",
    "PREPROCESSINGS",
    "SETS",
    "CheckedSubset",
    "DataSet",
    "Preprocessing",
    "check",
    "corrupt",
    "corrupted",
    "fetch",
    "load",
    "place",
]
