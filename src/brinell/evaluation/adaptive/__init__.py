"""What an adaptive evaluation does to a model that hides its gradients, without a hint by the user.

`modules` probes every submodule: does its gradient say how its output changes? `networks` finds networks inside the
model that can be attacked in its place. `plan` puts this together: attacks through surrogates, averages over noise,
points on the 8-bit grid, smaller balls, black-box attacks. `single_rows` finds models whose answers depend on the
batch, which are asked row by row. The model itself judges every point.
"""

from brinell.evaluation.adaptive.plan import Adapted, adapt_to_masking
from brinell.evaluation.adaptive.single_rows import find_batch_dependence, one_row_at_a_time

__all__ = ["Adapted", "adapt_to_masking", "find_batch_dependence", "one_row_at_a_time"]
