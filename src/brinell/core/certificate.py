"""A certificate: what a method proved about one sample, the counterpart of an adversarial example."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from brinell.core.threat import Threat


@dataclass(frozen=True)
class Certificate:
    """What one method proved about one sample: `certified` if no perturbation within `radius` changes the class.

    `margin` is a lower bound on the true logit minus the largest other logit over the whole ball, rounding errors
    subtracted: positive if and only if the sample is certified; -inf if no bound was computed. `passes` counts bound
    computations, the unit of cost. `stopped` says why a sample stays open (time limit, memory, unsupported norm); empty
    if it is decided. `counterexample` is a point in the ball that the method takes for adversarial; it counts only
    after verification on the model.
    """

    method: str
    certified: bool
    radius: float
    margin: float
    passes: int
    seconds: float
    precision: str
    stopped: str = ""
    counterexample: Tensor | None = None


@runtime_checkable
class Certifier(Protocol):
    """A method that certifies samples: bounds, branch and bound, integer programming, randomised smoothing."""

    def certify(self, x: Tensor, y: Tensor, threat: Threat) -> list[Certificate]:
        """Return one certificate per sample for the threat's radius; the samples are classified correctly."""
