"""Lower bounds on robustness: prove that no perturbation within the radius changes a class.

`certify` holds `Bounds`, which tries methods from cheap to exact. `trace` turns a torch module into a `network` of
`operations` and `activations`, with the tables of `translate`. `interval` holds the region of allowed
inputs and interval arithmetic, `linear_bounds` CROWN, `windows` its first steps from a convolution, `large` the
ranges of large networks, `rounding` the errors of floating-point arithmetic. `undecided` reduces a ReLU network to its
undecided neurons, `relaxation` bounds many subproblems of them at once and optimises the bounds, `branch_and_bound`
splits them; `milp` decides by integer programming. `activation_search` looks for adversarial examples with bounds as a
guide.
"""

from brinell.certification.certify import Bounds
from brinell.certification.trace import trace

__all__ = ["Bounds", "trace"]
