"""Measure how well an attack optimises its loss.

`trace` follows loss and accuracy by iteration; `logit_scale` finds gradients that vanish because the logits are large.
`brinell analyze trace` and `brinell analyze logit-scale` call these functions.
"""

from brinell.reliability.traces.logit_scale import LogitScale, LogitScales, logit_scales
from brinell.reliability.traces.trace import Trace, Traces, trace

__all__ = ["LogitScale", "LogitScales", "Trace", "Traces", "logit_scales", "trace"]
