"""Run an evaluation on many workers with Ray: every GPU of a machine, or a cluster.

`ray` holds `Ray`, the launcher that a user passes to `brinell.evaluate(..., launch=Ray("gpu"))`. It pickles the
model (`serialize_model`), starts Ray actors (`actor_pool`), and gives the evaluation a backend. The backend runs one
`Driver` per job (`driver`): it assigns units (sets of samples), receives rows and replaces crashed workers. The
`scheduler` decides which worker gets which samples; the `sample_ledger` holds the samples and drops duplicate rows; a
`worker` attacks its units in its own process. `simulation` runs the same scheduler against a virtual clock to predict
time and cost.
"""

from brinell.distributed.ray import Ray
from brinell.distributed.simulation import ClusterEstimate, World, estimate

Estimate = ClusterEstimate  # the name in the first version

__all__ = ["ClusterEstimate", "Estimate", "Ray", "World", "estimate"]
