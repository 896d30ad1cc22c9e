"""What an adaptive evaluation does to a model that hides its gradients, without a hint by the user.

`modules` probes every submodule: does its gradient say how its output changes? `networks` finds networks inside the
model that can be attacked in its place. `plan` puts this together: attacks through surrogates, averages over noise,
points on the 8-bit grid, black-box attacks. The model itself judges every point.
"""

from brinell.evaluation.adaptive.plan import Adapted, adapt_to_masking

__all__ = ["Adapted", "adapt_to_masking"]
