"""Attacks without gradients: they read logits or decisions only.

`square`: random search over square windows of images (`square_patterns` holds the windows and patterns).
`random_search`: the same search over random subsets of coordinates, for inputs that are not images, and the schedule,
state and moves that it shares with `square`. `hop_skip_jump`: a minimum-norm attack that reads decisions only.
`random_sampling`: independent random points, the baseline of the binarization test.
"""

from brinell.attacks.black_box.hop_skip_jump import HopSkipJump
from brinell.attacks.black_box.random_sampling import RandomSampling
from brinell.attacks.black_box.random_search import RandomSearch
from brinell.attacks.black_box.square import Square

__all__ = ["HopSkipJump", "RandomSampling", "RandomSearch", "Square"]
