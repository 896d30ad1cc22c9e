"""What is attacked: rows in, rows out, plus facts about itself."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from brinell.ops.types import Doubles, Labels, Logits, Points, Scalars


@dataclass(frozen=True)
class Output:
    """A model's answer: logits, and for models with a detector a score that is positive where the input is rejected.

    `features`, one flat row each, come from models that were told which layer gives them.
    """

    logits: Logits
    reject: Scalars | None = None
    features: Doubles | None = None


@runtime_checkable
class Classifier(Protocol):
    """Inputs in the unit box, one row of logits per row of input, differentiable through autograd unless it says so."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the output."""

    @property
    def differentiable(self) -> bool:
        """Whether autograd through `forward` gives the input gradient."""

    @property
    def device(self) -> torch.device:
        """Where the inputs must be."""

    @property
    def allow(self) -> frozenset[str]:
        """Defects the user knows of: they are stored as flags instead of refused."""

    def forward(self, x: Points) -> Output:
        """The model's answer for a batch of points in [0, 1]."""

    def to(self, device: torch.device) -> "Classifier":
        """The same classifier elsewhere."""

    def dtypes(self) -> set[str]:
        """Kinds of numbers the weights are stored in."""

    def modes(self) -> list[str]:
        """Names of parts that are in train mode (empty: none)."""


@runtime_checkable
class Personal(Protocol):
    """A classifier that is another one for every sample: it is told which sample each row belongs to."""

    def forward_of(self, x: Points, id: Labels) -> Output:
        """The answer for points that belong to the samples `id`."""


def answer(classifier: Classifier, x: Points, id: Labels | None = None) -> Output:
    """The classifier's answer; the samples' ids reach only a classifier that asks for them."""
    if id is not None and isinstance(classifier, Personal):
        return classifier.forward_of(x, id)
    return classifier.forward(x)
