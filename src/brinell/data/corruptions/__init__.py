"""Common corruptions of images at five severities (Hendrycks & Dietterich 2019), with keyed noise.

`registry` lists all corruptions with their published constants and applies one (`corrupt`). The functions are in
`noise`, `blur`, `weather` (with the drawn ice of `frost`) and `digital` (with the exact `jpeg` codec); they share the
filters of `image_ops`. `problem` makes a Problem whose images are corrupted as they are read (`corrupted`).
"""

from brinell.data.corruptions.problem import corrupted
from brinell.data.corruptions.registry import COMMON, CORRUPTIONS, EXTRA, SEVERITIES, Corruption, corrupt

__all__ = ["COMMON", "CORRUPTIONS", "EXTRA", "SEVERITIES", "Corruption", "corrupt", "corrupted"]
